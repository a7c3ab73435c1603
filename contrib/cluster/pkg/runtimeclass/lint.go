package runtimeclass

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// Severity is the severity of a Finding.
type Severity string

// Severities.
const (
	// Error means that the API server rejects the class, or its pods cannot run correctly.
	Error Severity = "error"
	// Warning means that the class works, but may have unwanted effects.
	Warning Severity = "warning"
)

// Rules of findings.
const (
	ruleInvalid             = "invalid"
	ruleVersion             = "version-not-served"
	ruleDuplicate           = "duplicate-name"
	ruleUnknownHandler      = "unknown-handler"
	ruleHandlerTakesNoPods  = "handler-takes-no-pods"
	ruleOverheadTooSmall    = "overhead-too-small"
	ruleOverheadMissing     = "overhead-missing"
	ruleNodeSelectorMissing = "node-selector-missing"
	ruleAnnotationInvalid   = "annotation-invalid"
	ruleSelectorLeaves      = "node-selector-leaves"
	rulePodsNotCounted      = "pods-not-counted"
	rulePodsOfAnother       = "pods-of-another-handler"
)

// Finding is a mistake in a class.
type Finding struct {
	Severity Severity `json:"severity"`
	Rule     string   `json:"rule"`
	Class    string   `json:"class"`
	// Where is file:line and the document.
	Where string `json:"where"`
	// Field is the path in the manifest.
	Field string `json:"field,omitempty"`
	// Message is the API server's own message, if it has one for this mistake.
	Message string `json:"message"`
	// Advice is the remedy, unless the message has it.
	Advice string `json:"advice,omitempty"`
}

// String returns one line as compilers print it, because findings are too long for a table.
func (f Finding) String() string {
	text := fmt.Sprintf("%s: %s: %s", f.Where, f.Severity, f.Message)
	if f.Advice != "" {
		text += "; " + f.Advice
	}
	return fmt.Sprintf("%s (RuntimeClass %q, %s)", text, f.Class, f.Rule)
}

// LintOptions configure Lint. It compares classes with Handlers unless these are nil.
type LintOptions struct {
	// Handlers are all existing handlers.
	Handlers []Handler
	// MeasuredOnly means that Handlers only has measurements and may be incomplete.
	MeasuredOnly bool
}

// Lint returns the findings of classes, in their order.
func Lint(classes []Class, o LintOptions) []Finding {
	all := []Finding{}
	first := map[string]Class{}
	for _, c := range classes {
		all = append(all, lintManifest(c)...)
		if before, ok := first[c.Name]; ok && c.Name != "" {
			all = append(all, finding(c, Error, ruleDuplicate, "metadata.name", fmt.Sprintf("RuntimeClass %q is also at %s", c.Name, before.Where("")),
				"remove one of the two"))
		} else {
			first[c.Name] = c
		}
		if o.Handlers != nil && checkName(c.Handler) == nil {
			all = append(all, lintHandler(c, o)...)
		}
		if _, err := c.Annotated(); err != nil {
			all = append(all, lintAnnotation(c, err))
		}
		all = append(all, lintCapacity(c)...)
		if !Counted(c.RuntimeClass) && (c.Scheduling == nil || len(c.Scheduling.NodeSelector) == 0) {
			all = append(all, finding(c, Warning, ruleNodeSelectorMissing, "scheduling", "pods of this class can be scheduled on nodes without its handler, where they never start",
				"select nodes by a label of those with the handler, as \"kubectl berth generate\" does"))
		}
	}
	return all
}

func finding(c Class, s Severity, rule, field, message, advice string) Finding {
	field = c.field(field)
	return Finding{Severity: s, Rule: rule, Class: c.Name, Where: c.Where(field), Field: field, Message: message, Advice: advice}
}

// lintManifest checks the version and the names. Users find other mistakes by a dry run of the API
// server.
func lintManifest(c Class) []Finding {
	var all []Finding
	if c.Version != "v1" {
		all = append(all, finding(c, Error, ruleVersion, "apiVersion",
			fmt.Sprintf("%s%s was removed in Kubernetes 1.25", nodeGroup, c.Version), "rewrite it by \"kubectl berth migrate\""))
	}
	if errs := validation.IsDNS1123Subdomain(c.Name); len(errs) > 0 {
		all = append(all, finding(c, Error, ruleInvalid, "metadata.name", fmt.Sprintf("%q is not a valid name: %s", c.Name, strings.Join(errs, "; ")), ""))
	}
	if err := checkName(c.Handler); err != nil {
		advice := ""
		if allowed := strings.ToLower(strings.NewReplacer(".", "-", "_", "-").Replace(c.Handler)); checkName(allowed) == nil {
			advice = fmt.Sprintf("rename it to %q in the runtime's configuration and here", allowed)
		}
		all = append(all, finding(c, Error, ruleInvalid, "handler", err.Error(), advice))
	}
	return all
}

// lintAnnotation reports an invalid annotation, which an API server does not check.
func lintAnnotation(c Class, err error) Finding {
	f := finding(c, Warning, ruleAnnotationInvalid, "metadata.annotations", err.Error(), "generate the class again, or remove the annotation")
	var p Problem
	if errors.As(err, &p) {
		f.Field, f.Where, f.Message = p.Field, p.Where(p.Field), p.Text
	}
	return f
}

// lintHandler checks the handler that the class names.
func lintHandler(c Class, o LintOptions) []Finding {
	h, known := ByName(o.Handlers, c.Handler)
	if !known {
		if o.MeasuredOnly {
			return nil
		}
		return []Finding{finding(c, Error, ruleUnknownHandler, "handler", fmt.Sprintf("handler %q does not exist%s", c.Handler, DidYouMean(c.Handler, Names(o.Handlers))),
			"the handlers are "+cmp.Or(Few(slices.Sorted(slices.Values(Names(o.Handlers)))), "none")+"; pods of the class stay in ContainerCreating")}
	}
	var all []Finding
	if !h.takesPods() {
		all = append(all, finding(c, Warning, ruleHandlerTakesNoPods, "handler", h.WhyNot(), "see \"berth handler show "+h.Name+"\""))
	}
	if m := h.measured(); m != nil {
		all = append(all, lintOverhead(c, m)...)
	}
	return all
}

// lintCapacity checks a class's use of berth's labels and resources.
func lintCapacity(c Class) []Finding {
	var all []Finding
	var selects map[string]string
	if c.Scheduling != nil {
		selects = c.Scheduling.NodeSelector
	}
	own := nodelabel.Pods(c.Handler)
	if key := nodelabel.Handler(c.Handler); selects[key] == nodelabel.Ready {
		all = append(all, finding(c, Warning, ruleSelectorLeaves, fmt.Sprintf("scheduling.nodeSelector[%s]", key),
			"the label is removed while the handler takes no pods, and a kubelet that starts then ends the running pods",
			fmt.Sprintf("select %s: %q and declare overhead.podFixed: %s: 1, as \"kubectl berth generate\" does", nodelabel.Present(c.Handler), nodelabel.True, own)))
	}
	if key := nodelabel.Present(c.Handler); selects[key] == nodelabel.True && !Counted(c.RuntimeClass) {
		all = append(all, finding(c, Warning, rulePodsNotCounted, fmt.Sprintf("scheduling.nodeSelector[%s]", key),
			"the label stays when the handler takes no pods, so pods are scheduled to nodes where they wait in ContainerCreating",
			fmt.Sprintf("declare overhead.podFixed: %s: 1", own)))
	}
	if c.Overhead == nil {
		return all
	}
	for _, name := range slices.Sorted(maps.Keys(c.Overhead.PodFixed)) {
		if nodelabel.IsPods(string(name)) && string(name) != own {
			all = append(all, finding(c, Error, rulePodsOfAnother, fmt.Sprintf("overhead.podFixed[%s]", name),
				fmt.Sprintf("it counts pods of a handler other than %q", c.Handler), "declare "+own+" in its place"))
		}
	}
	return all
}

// resources formats a list, such as "cpu: 10m, memory: 12Mi".
func resources(l corev1.ResourceList) string {
	var all []string
	for _, n := range slices.Sorted(maps.Keys(l)) {
		q := l[n]
		all = append(all, fmt.Sprintf("%s: %s", n, q.String()))
	}
	return strings.Join(all, ", ")
}

// most is the number of names that Few shows.
const most = 5

// Few returns the first names, separated by commas, and the number of the others.
func Few(names []string) string {
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}
