// Package policy makes admission policies of what handlers can do:
//
//	rules, err := policy.ParseRules("rules.yaml", text)  // says file, line and key of each mistake
//	all, err := policy.Generate(policy.Options{Classes: classes, Handlers: handlers, Rules: rules})
//
// A ValidatingAdmissionPolicy refuses pods that the handler of their class cannot run, for
// the reasons that fit gives; a MutatingAdmissionPolicy gives pods without a class one,
// by rules. API servers evaluate them by themselves: there is no webhook to run, and
// all that they need is in them.
//
// It is pure. What pods ask for is in pkg/runtimeclass, in one table for both.
package policy
