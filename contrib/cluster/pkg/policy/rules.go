package policy

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Rule gives a class to pods without one. The first rule that matches a pod applies.
type Rule struct {
	// Name is for display.
	Name       string     `json:"name"`
	Namespaces Namespaces `json:"namespaces"`
	Pods       Pods       `json:"pods"`
	// Class is the class of the pods. If it is empty, Isolation selects one.
	Class string `json:"class"`
	// Isolation is an isolation of package capability, or Strongest.
	Isolation capability.Isolation `json:"isolation"`
	// Least is the weakest isolation that Strongest may select; empty means no limit.
	Least capability.Isolation `json:"least"`

	source runtimeclass.Source
	at     string
}

// Namespaces matches namespaces with all Labels and, if there are Names, one of them.
type Namespaces struct {
	Names  []string          `json:"names"`
	Labels map[string]string `json:"labels"`
}

// Pods matches pods with all Labels that, if there are Asks, request one of them.
type Pods struct {
	Labels map[string]string `json:"labels"`
	Asks   []capability.Name `json:"asks"`
}

// Strongest selects the strongest isolation of the classes that can run the pod.
const Strongest capability.Isolation = "strongest"

var strengths = []capability.Isolation{capability.VM, capability.UserSpaceKernel, capability.SharedKernel}

var isolations = append([]capability.Isolation{Strongest}, strengths...)

// allowed lists the valid keys below each path of a file of rules.
var allowed = map[string][]string{
	"":                   {"rules"},
	"rules[]":            {"name", "namespaces", "pods", "class", "isolation", "least"},
	"rules[].namespaces": {"names", "labels"},
	"rules[].pods":       {"labels", "asks"},
}

var index = regexp.MustCompile(`\[\d+\]`)

// ParseRules parses rules from YAML or JSON. The error has the file, the line and the key of every
// mistake, and the allowed values.
func ParseRules(file string, text []byte) ([]Rule, error) {
	var read struct {
		Rules []Rule `json:"rules"`
	}
	source, err := runtimeclass.ParseOne(file, text, "a mapping with the key rules", &read)
	var problems runtimeclass.Problems
	if err != nil {
		if !errors.As(err, &problems) || source.Document == 0 {
			return nil, err
		}
		for i := range problems {
			problems[i].Text = hint(problems[i])
		}
	}
	if len(read.Rules) == 0 && len(problems) == 0 {
		return nil, runtimeclass.Problems{{Source: source, Text: "has no rules; write them below the key rules"}}
	}
	// The file is parsed again without types: in a Rule, an empty value equals an absent key.
	var written struct {
		Rules []map[string]any `json:"rules"`
	}
	if s, err := runtimeclass.ParseOne(file, text, "a mapping with the key rules", &written); err != nil && s.Document == 0 {
		return nil, err
	}
	seen, always := map[string]bool{}, ""
	for i := range read.Rules {
		r := &read.Rules[i]
		r.source, r.at = source, fmt.Sprintf("rules[%d]", i)
		wrong := func(key, format string, args ...any) {
			field := strings.TrimSuffix(r.at+"."+key, ".")
			problems = append(problems, runtimeclass.Problem{Source: source, Field: field, Text: field + ": " + fmt.Sprintf(format, args...)})
		}
		switch {
		case r.Name == "":
			wrong("", "missing name")
		case seen[r.Name]:
			wrong("name", "duplicate rule %q", r.Name)
		case always != "":
			wrong("", "is never reached: rule %q before it is for all pods", always)
		}
		seen[r.Name] = true
		for _, key := range emptyKeys(written.Rules[i]) {
			wrong(key, "is empty; leave the key out if it does not matter")
		}
		r.check(wrong)
		if r.when() == "" && always == "" {
			always = r.Name
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return read.Rules, nil
}

// notEmpty are the keys of a rule that must have a value if they are present. A template may write
// an empty key for a missing value; the rule would then match more pods than intended, or give them
// less isolation.
var notEmpty = []string{"namespaces", "namespaces.names", "namespaces.labels", "pods", "pods.labels", "pods.asks", "least"}

func emptyKeys(rule map[string]any) []string {
	return slices.DeleteFunc(slices.Clone(notEmpty), func(key string) bool {
		value, there, err := unstructured.NestedFieldNoCopy(rule, strings.Split(key, ".")...)
		return err != nil || !there || !isEmpty(value)
	})
}

func isEmpty(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

// hint adds the allowed keys to the problem of an unknown key.
func hint(p runtimeclass.Problem) string {
	at, key := "", p.Field
	if i := strings.LastIndexByte(p.Field, '.'); i >= 0 {
		at, key = p.Field[:i], p.Field[i+1:]
	}
	keys := allowed[index.ReplaceAllString(at, "[]")]
	if len(keys) == 0 {
		return p.Text
	}
	return fmt.Sprintf("%s; allowed are %s%s", p.Text, strings.Join(keys, ", "), runtimeclass.DidYouMean(key, keys))
}

// check reports mistakes that do not depend on other rules.
func (r *Rule) check(wrong func(key, format string, args ...any)) {
	for i, name := range r.Namespaces.Names {
		if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
			wrong(fmt.Sprintf("namespaces.names[%d]", i), "%q is not a name of a namespace: %s", name, strings.Join(errs, "; "))
		}
	}
	for at, labels := range map[string]map[string]string{"namespaces.labels": r.Namespaces.Labels, "pods.labels": r.Pods.Labels} {
		for key, value := range labels {
			if errs := slices.Concat(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)); len(errs) > 0 {
				wrong(fmt.Sprintf("%s[%s]", at, key), "%s=%s is not a label: %s", key, value, strings.Join(errs, "; "))
			}
		}
	}
	for i, name := range r.Pods.Asks {
		if all := runtimeclass.Asked(); !slices.Contains(all, name) {
			wrong(fmt.Sprintf("pods.asks[%d]", i), "pods cannot ask for %q; allowed are %s%s", name, strings.Join(texts(all), ", "), runtimeclass.DidYouMean(string(name), texts(all)))
		}
	}
	switch {
	case r.Class == "" && r.Isolation == "":
		wrong("", "missing class or isolation")
	case r.Class != "" && r.Isolation != "":
		wrong("isolation", "a rule has a class or an isolation, not both")
	case r.Isolation != "" && !slices.Contains(isolations, r.Isolation):
		wrong("isolation", "%q must be one of %s%s", r.Isolation, strings.Join(texts(isolations), ", "), runtimeclass.DidYouMean(string(r.Isolation), texts(isolations)))
	}
	switch {
	case r.Least == "":
	case r.Isolation != Strongest:
		wrong("least", "is only for isolation: %s", Strongest)
	case !slices.Contains(strengths, r.Least):
		wrong("least", "%q must be one of %s%s", r.Least, strings.Join(texts(strengths), ", "), runtimeclass.DidYouMean(string(r.Least), texts(strengths)))
	}
}

func texts[T ~string](all []T) []string {
	var out []string
	for _, one := range all {
		out = append(out, string(one))
	}
	return out
}

// hasClass returns an error if the rule's class does not exist.
func (r Rule) hasClass(o Options) error {
	var all []string
	for _, c := range o.Classes {
		all = append(all, c.Name)
	}
	if slices.Contains(all, r.Class) {
		return nil
	}
	slices.Sort(all)
	if len(all) == 0 {
		return fmt.Errorf("RuntimeClass %q does not exist; create it first", r.Class)
	}
	return fmt.Errorf("RuntimeClass %q does not exist; there are %s%s", r.Class, strings.Join(all, ", "), runtimeclass.DidYouMean(r.Class, all))
}

// given returns the classes that rules can give, with their handlers.
func (o Options) given(all []class) map[string]string {
	given := map[string]string{}
	for _, r := range o.Rules {
		names := []string{r.Class}
		if r.Class == "" {
			groups, _ := r.groups(all, o) // choices returns this error
			names = slices.Concat(groups...)
		}
		for _, name := range names {
			for _, c := range o.Classes {
				if c.Name == name {
					given[name] = c.Handler
				}
			}
		}
	}
	return given
}

// groups returns the classes that the rule can give, by isolation, the strongest first. A group is
// sorted by overhead, the smallest first.
func (r Rule) groups(all []class, o Options) ([][]string, error) {
	var groups [][]string
	has := map[capability.Isolation][]string{}
	for _, isolation := range strengths {
		var of []class
		for _, c := range all {
			if c.name != "" && c.handler.Isolation == isolation && c.takesPods(o) {
				of = append(of, c)
			}
		}
		slices.SortStableFunc(of, func(a, b class) int {
			return cmp.Or(a.overhead.Memory().Cmp(*b.overhead.Memory()), a.overhead.Cpu().Cmp(*b.overhead.Cpu()))
		})
		for _, c := range of {
			has[isolation] = append(has[isolation], c.name)
		}
		if len(of) > 0 && r.wants(isolation) {
			groups = append(groups, has[isolation])
		}
	}
	if len(groups) > 0 {
		return groups, nil
	}
	var there []string
	for _, isolation := range strengths {
		if len(has[isolation]) > 0 {
			there = append(there, fmt.Sprintf("%s (%s)", isolation, strings.Join(has[isolation], ", ")))
		}
	}
	if len(there) == 0 {
		there = []string{"none that is known"}
	}
	wanted := string(r.Isolation)
	if r.Least != "" {
		wanted = string(r.Least) + " or stronger"
	}
	return nil, fmt.Errorf("no class gives %s; classes give %s", wanted, strings.Join(there, ", "))
}

// wants reports whether the rule accepts classes of an isolation.
func (r Rule) wants(isolation capability.Isolation) bool {
	if r.Isolation != Strongest {
		return r.Isolation == isolation
	}
	return r.Least == "" || slices.Index(strengths, isolation) <= slices.Index(strengths, r.Least)
}
