package policy

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/nodelabel"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// largest is the maximum length of an expression in an API server's parser.
const largest = 100_000

// longest is the maximum length of a message in characters. An API server omits messages above 5
// KiB, and characters may have several bytes.
const longest = 1200

var quote = runtimeclass.Quote

// list formats texts as a list in CEL.
func list[T ~string](all []T) string {
	var quoted []string
	for _, one := range all {
		quoted = append(quoted, quote(string(one)))
	}
	return "[" + strings.Join(quoted, ", ") + "]"
}

// mapping formats a map in CEL; its values are expressions.
func mapping(all map[string]string) string {
	var entries []string
	for _, key := range slices.Sorted(maps.Keys(all)) {
		entries = append(entries, quote(key)+": "+all[key])
	}
	return "{" + strings.Join(entries, ", ") + "}"
}

// shared is mapping that writes equal values only once: many classes may have the same handler.
func shared(all map[string]string) string {
	values := slices.Compact(slices.Sorted(maps.Values(all)))
	if len(values) == len(all) {
		return mapping(all)
	}
	at := map[string]string{}
	for key, value := range all {
		at[key] = strconv.Itoa(slices.Index(values, value))
	}
	return mapping(at) + ".transformMap(k, i, [" + strings.Join(values, ", ") + "][i])"
}

// variables are the variables of a policy. The API server evaluates only those that are used.
type variables []admissionv1.Variable

func (v *variables) set(name, expression string, args ...any) {
	if len(args) > 0 {
		expression = fmt.Sprintf(expression, args...)
	}
	*v = append(*v, admissionv1.Variable{Name: name, Expression: expression})
}

// tooLarge returns an error if an API server would reject an expression for its length.
func (v variables) tooLarge() error {
	for _, one := range v {
		if n := utf8.RuneCountInString(one.Expression); n > largest {
			return fmt.Errorf("the policies would be too large for an API server: the expression %s has %d characters; use --classes with fewer classes", one.Name, n)
		}
	}
	return nil
}

// debugging matches a request that adds ephemeral containers to a running pod. Only these
// containers are checked then.
const debugging = "request.operation == 'UPDATE'"

// needs sets the variables for the capabilities that classes may lack, and for the pod's needs.
// Each need lists a capability and the fields that request it. Only relevant capabilities are
// evaluated. debugs includes requests that add ephemeral containers.
func (v *variables) needs(pod string, all []class, relevant []capability.Name, debugs bool) {
	v.set("lacking", without(all, capability.No, capability.Unknown))
	v.set("pod", pod)
	asking, containers := "variables.pod", runtimeclass.ContainersExpression()
	if debugs {
		asking = debugging + " ? dyn({}) : variables.pod"
		containers = debugging + " ? " + runtimeclass.DebugContainersExpression() + " : " + containers
	}
	v.set("asking", asking)
	v.set("containers", containers)
	var asked []string
	for _, e := range runtimeclass.Expressions() {
		if !slices.Contains(relevant, e.Capability) {
			continue
		}
		name := "asks_" + strings.ReplaceAll(string(e.Capability), "-", "_")
		v.set(name, e.Text)
		asked = append(asked, fmt.Sprintf("[%s] + variables.%s", quote(string(e.Capability)), name))
	}
	// A list with only the capability requests nothing.
	v.set("needs", "["+strings.Join(asked, ", ")+"].filter(n, n.size() > 1)")
}

// without maps classes to the capabilities for which they have one of the answers.
func without(all []class, answers ...capability.Answer) string {
	lacks := map[string]string{}
	for _, c := range all {
		if l := c.lacks(answers...); len(l) > 0 {
			lacks[c.name] = list(l)
		}
	}
	return shared(lacks)
}

// notes maps classes to their capabilities with the answer, and these to reasons.
func notes(all []class, answer capability.Answer) string {
	lacks := map[string]string{}
	for _, c := range all {
		said := map[string]string{}
		for _, name := range c.lacks(answer) {
			said[string(name)] = quote(runtimeclass.MissingCapability{Known: c.handler.Of(name)}.Because())
		}
		if len(said) > 0 {
			lacks[c.name] = mapping(said)
		}
	}
	return shared(lacks)
}

// reasons sets the reasons why the pod's class cannot run it, in the words and the order of fit.
func (v *variables) reasons(all []class, o Options, debugs bool) {
	state := map[string]string{}
	if o.State {
		for _, c := range all {
			if why := c.handler.WhyNot(); why != "" {
				state[c.name] = "[" + quote(why) + "]"
			}
		}
	}
	taking := fmt.Sprintf("%s[?variables.class].orValue([])", mapping(state))
	if debugs {
		taking = debugging + " ? [] : " + taking
	}
	v.set("state", "%s", taking)
	for _, one := range []struct {
		name   string
		answer capability.Answer
	}{{"no", capability.No}, {"unknown", capability.Unknown}} {
		v.set("notes_"+one.name, "%s[?variables.class].orValue({})", notes(all, one.answer))
		v.set(one.name, "variables.needs.filter(n, n[0] in variables.notes_%s).map(n, %s + ' needs ' + n[0] + variables.notes_%s[n[0]])", one.name, runtimeclass.ClipExpression("n[1]"), one.name)
	}
	v.set("counted", "%s", list(o.counted(all)))
	v.set("places", "%s", runtimeclass.PlacesExpression())
	v.set("refused", "variables.state + variables.places + variables.no")
	v.set("able", "%s.filter(k, !variables.needs.exists(n, n[0] in variables.lacking[?k].orValue([])))%s", list(recommended(all, o)), noWeaker(all))
	v.set("advice", "variables.places.size() > 0 ? "+quote(runtimeclass.PlacesAdvice)+" : variables.able.size() > 0 ? 'use a class that supports it: ' + variables.able.join(', ') : 'no class with the same or stronger isolation supports it'")
	v.set("message", "[(variables.refused + variables.unknown + [variables.advice]).join('; ')].map(m, m.size() > %d ? m.substring(0, %d) + '…' : m)[0]", longest, longest)
}

// recommended returns the classes that a refusal may recommend.
func recommended(all []class, o Options) []string {
	var able []string
	for _, c := range all {
		if c.name != "" && c.takesPods(o) {
			able = append(able, c.name)
		}
	}
	return able
}

// noWeaker returns a filter for classes with their own kernel, used if the pod's class has one.
func noWeaker(all []class) string {
	var kernels []string
	for _, c := range all {
		if c.handler.Isolation.OwnKernel() {
			kernels = append(kernels, c.name)
		}
	}
	if len(kernels) == 0 {
		return ""
	}
	return fmt.Sprintf(".filter(k, k in %s || !(variables.class in %s))", list(kernels), list(kernels))
}

// counted returns the resources that count the pods of handlers, for all classes.
func (o Options) counted(all []class) []string {
	var resources []string
	for _, c := range o.Classes {
		resources = append(resources, nodelabel.Pods(c.Handler))
	}
	for _, c := range all {
		resources = append(resources, nodelabel.Pods(c.handler.Name))
	}
	slices.Sort(resources)
	return slices.Compact(resources)
}

// forWindows matches a pod for Windows nodes, which have no handler of berth.
const forWindows = "[variables.pod.?spec.?os.?name, variables.pod.?spec.?nodeSelector[?'kubernetes.io/os']].exists(o, o.orValue('') == 'windows')"

// choice sets a variable to the class of the first rule that matches the pod, or to "".
func (v *variables) choice(all []class, picks []string) {
	v.set("refusing", without(all, capability.No))
	var rules []string
	for i, pick := range picks {
		name := fmt.Sprintf("rule_%d", i+1)
		v.set(name, pick)
		rules = append(rules, "variables."+name)
	}
	v.set("chosen", forWindows+" ? '' : (["+strings.Join(rules, ", ")+"].filter(c, c != '') + [''])[0]")
}

// choices returns an expression for each rule: the class that it gives, or "" if it does not match
// the pod.
func choices(all []class, o Options) ([]string, error) {
	var picks []string
	var problems runtimeclass.Problems
	for _, r := range o.Rules {
		pick, err := r.picks(all, o)
		if err != nil {
			key := "isolation"
			if r.Class != "" {
				key = "class"
			}
			problems = append(problems, runtimeclass.Problem{Source: r.source, Field: r.at + "." + key, Text: fmt.Sprintf("%s.%s: %v", r.at, key, err)})
			continue
		}
		if when := r.when(); when != "" {
			pick = fmt.Sprintf("%s ? %s : ''", when, pick)
		}
		picks = append(picks, pick)
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return picks, nil
}

// when returns the condition of the rule, which is empty if the rule matches all pods.
func (r Rule) when() string {
	var all []string
	if len(r.Namespaces.Names) > 0 {
		all = append(all, "request.namespace in "+list(r.Namespaces.Names))
	}
	for _, of := range []struct {
		labels string
		want   map[string]string
	}{{"dyn(namespaceObject).?metadata.?labels", r.Namespaces.Labels}, {"variables.pod.?metadata.?labels", r.Pods.Labels}} {
		for _, key := range slices.Sorted(maps.Keys(of.want)) {
			all = append(all, fmt.Sprintf("%s[?%s] == optional.of(%s)", of.labels, quote(key), quote(of.want[key])))
		}
	}
	if len(r.Pods.Asks) > 0 {
		all = append(all, "variables.needs.exists(n, n[0] in "+list(r.Pods.Asks)+")")
	}
	return strings.Join(all, " && ")
}

// protecting are capabilities that separate pods better. A request for one must not lead to weaker
// isolation: a tenant could select the node's kernel by one field.
var protecting = []capability.Name{
	capability.UserNamespaces, capability.IDMappedMounts, capability.RecursiveReadOnlyMounts,
	capability.SELinux, capability.Seccomp, capability.AppArmor,
}

// picks returns an expression of the class that the rule gives.
func (r Rule) picks(all []class, o Options) (string, error) {
	if r.Class != "" {
		return quote(r.Class), r.hasClass(o)
	}
	groups, err := r.groups(all, o)
	if err != nil {
		return "", err
	}
	var parts []string
	for i, group := range groups {
		for _, lacks := range []string{"lacking", "refusing"} {
			parts = append(parts, fmt.Sprintf("%s.filter(k, !variables.needs.exists(n, n[0] in variables.%s[?k].orValue([])))", list(group), lacks))
		}
		// Classes that lack only protecting capabilities precede weaker classes, but refuse the
		// pod.
		if i < len(groups)-1 && protectsLess(all, group) {
			parts = append(parts, fmt.Sprintf("%s.filter(k, !variables.needs.exists(n, !(n[0] in %s) && n[0] in variables.refusing[?k].orValue([])))", list(group), list(protecting)))
		}
	}
	// If no class can run the pod, it gets the first class: the refusal then has reasons.
	parts = append(parts, list(groups[0][:1]))
	return "(" + strings.Join(parts, " + ") + ")[0]", nil
}

// protectsLess reports whether a class of the group lacks a protecting capability.
func protectsLess(all []class, group []string) bool {
	return slices.ContainsFunc(all, func(c class) bool {
		return slices.Contains(group, c.name) && slices.ContainsFunc(c.lacks(capability.No), func(n capability.Name) bool { return slices.Contains(protecting, n) })
	})
}
