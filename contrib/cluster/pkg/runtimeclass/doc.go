// Package runtimeclass decides about RuntimeClasses what a cluster would, without
// one:
//
//	objects, err := runtimeclass.Parse("classes.yaml", text) // says file, line and document of each mistake
//	findings := runtimeclass.Lint(runtimeclass.Classes(objects), runtimeclass.LintOptions{Handlers: handlers})
//	admission := runtimeclass.Admit(pod, classes)             // what the API server makes of a pod
//	verdict := runtimeclass.Fit(pod, handler)
//
// It is pure: texts and tables go in, values come out. Nothing is read from disk,
// from a cluster or from a daemon, and nothing is written. Where the API server
// has words for something, they are used as they are, so that what is found here
// is what would be found there; integration/runtimeclass holds both side by side.
package runtimeclass
