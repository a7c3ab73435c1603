package runtimeclass

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Ready is the state of a handler that takes pods.
const Ready = "ready"

// Handler holds the known facts about a handler of one node or of several nodes.
type Handler struct {
	Name string `json:"name"`
	// Default means that pods without a class get the handler.
	Default bool `json:"default,omitempty"`
	// State is "ready", or another state with a Reason; an empty state is unknown and treated as
	// ready.
	State  string `json:"state,omitempty"`
	Reason string `json:"reason,omitempty"`
	// Overhead is nil if nothing was measured.
	Overhead *Measurement `json:"overhead,omitempty"`
	capability.Table
}

func (h Handler) takesPods() bool { return h.State == "" || h.State == Ready }

// WhyNot returns why a handler takes no pods; "" if it takes them.
func (h Handler) WhyNot() string {
	if h.takesPods() {
		return ""
	}
	if h.Reason == "" {
		return "the handler is " + h.State
	}
	return fmt.Sprintf("the handler is %s: %s", h.State, h.Reason)
}

// Unchosen returns the default handler of one node, for pods of any node: other nodes may have
// another default, so a missing capability becomes unknown.
func (h Handler) Unchosen() Handler {
	h.State, h.Reason = "", ""
	h = h.Anywhere()
	for name, k := range h.Capabilities {
		if k.Answer == capability.No {
			h.SetUnknown(name, "the default of the node that was asked does not")
		}
	}
	return h
}

// Anywhere returns what holds for a handler on all nodes of a cluster: a capability that one node's
// probe did not find becomes unknown.
func (h Handler) Anywhere() Handler {
	h.Capabilities = maps.Clone(h.Capabilities)
	for name, k := range h.Capabilities {
		if k.Answer == capability.No && k.Source == capability.Probed {
			h.SetUnknown(name, "the node that was asked answers no")
		}
	}
	return h
}

// SetUnknown makes a capability unknown, and puts the reason before its note.
func (h *Handler) SetUnknown(name capability.Name, why string) {
	note := h.Of(name).Note
	if why != "" && note != "" {
		why += ": "
	}
	h.Set(name, capability.Unknown, "", why+note)
}

// Measurement is the measured use of pods beyond their containers.
type Measurement struct {
	// Pods is the number of measured pods. Zero means no data.
	Pods   int          `json:"pods"`
	Memory Distribution `json:"memory"`
	CPU    Distribution `json:"cpu"`
}

// Distribution describes the pods' use of one resource.
type Distribution struct {
	P50 resource.Quantity `json:"p50"`
	P95 resource.Quantity `json:"p95"`
	Max resource.Quantity `json:"max"`
	// Pods is the number of pods, if it differs from the Measurement's.
	Pods int `json:"pods,omitempty"`
}

// measured returns the measurement, or nil without data.
func (h Handler) measured() *Measurement {
	if h.Overhead == nil || h.Overhead.Pods <= 0 {
		return nil
	}
	return h.Overhead
}

// Inventory is a file of handlers.
type Inventory struct {
	Handlers []Handler `json:"handlers"`
}

// ParseInventory parses an Inventory from YAML or JSON. file is only for error messages.
func ParseInventory(file string, text []byte) ([]Handler, error) {
	var i Inventory
	s, err := ParseOne(file, text, "a list of handlers", &i)
	var problems Problems
	if err != nil && !errors.As(err, &problems) {
		return nil, err
	}
	if s.document == nil {
		return nil, problems
	}
	seen := map[string]bool{}
	for n, h := range i.Handlers {
		at := fmt.Sprintf("handlers[%d]", n)
		wrong := func(field string, err error) {
			problems = append(problems, Problem{Source: s, Field: join(at, field), Text: fmt.Sprintf("%s: %v", join(at, field), err)})
		}
		if err := checkName(h.Name); err != nil {
			wrong("name", err)
		} else if seen[h.Name] {
			wrong("name", fmt.Errorf("duplicate handler %q", h.Name))
		}
		seen[h.Name] = true
		if err := h.Table.Validate(); err != nil {
			wrong("", err)
		}
		if err := h.Overhead.validate(); err != nil {
			wrong("overhead", err)
		}
	}
	if len(problems) > 0 {
		return nil, problems
	}
	return i.Handlers, nil
}

// ParseOne parses the only document of a file, YAML or JSON, into a value; what names that value in
// errors. The error is a Problem if the text is not YAML, else Problems, which include unknown
// keys. A Source without a document means that nothing was parsed.
func ParseOne(file string, text []byte, what string, into any) (Source, error) {
	all, err := documents(file, text)
	if err != nil {
		return Source{}, err
	}
	if len(all) != 1 {
		return Source{}, Problems{{Source: Source{File: file}, Text: fmt.Sprintf("is not %s: it has %d documents instead of one", what, len(all))}}
	}
	s := Source{File: file, Document: 1, document: all[0]}
	body, wrong := all[0].json(s)
	if wrong != nil {
		return Source{}, *wrong
	}
	problems, read := unmarshal(s, body, into, what)
	switch {
	case !read:
		return Source{}, problems
	case len(problems) > 0:
		return s, problems
	}
	return s, nil
}

// ParseNames parses names separated by commas.
func ParseNames(list string) ([]Handler, error) {
	var all []Handler
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if err := checkName(name); err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(all, func(h Handler) bool { return h.Name == name }) {
			all = append(all, Handler{Name: name})
		}
	}
	return all, nil
}

func checkName(name string) error {
	if name == "" {
		return errors.New("handler without a name")
	}
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("%q is not a valid handler name: %s", name, strings.Join(problems, "; "))
	}
	return nil
}

func (m *Measurement) validate() error {
	if m == nil {
		return nil
	}
	if m.Pods < 0 {
		return fmt.Errorf("pods: %d is negative", m.Pods)
	}
	for what, d := range map[string]Distribution{"memory": m.Memory, "cpu": m.CPU} {
		if d.Pods < 0 {
			return fmt.Errorf("%s: pods: %d is negative", what, d.Pods)
		}
		if d.P50.Sign() < 0 || d.P50.Cmp(d.P95) > 0 || d.P95.Cmp(d.Max) > 0 {
			return fmt.Errorf("%s: p50 %s, p95 %s and max %s are not in ascending order", what, d.P50.String(), d.P95.String(), d.Max.String())
		}
	}
	return nil
}

// WithMeasurements returns the handlers with the measurements of measured, matched by name.
func WithMeasurements(handlers, measured []Handler) []Handler {
	all := slices.Clone(handlers)
	for i := range all {
		if m, ok := ByName(measured, all[i].Name); ok && m.Overhead != nil {
			all[i].Overhead = m.Overhead
		}
	}
	return all
}

// ByName returns the handler with a name.
func ByName(handlers []Handler, name string) (Handler, bool) {
	for _, h := range handlers {
		if h.Name == name {
			return h, true
		}
	}
	return Handler{}, false
}

// DidYouMean returns the likely intended name as a question, or "".
func DidYouMean(name string, all []string) string {
	near, ok := handler.Suggest(name, all)
	if !ok || near == name {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", near)
}

// Names returns the names of handlers.
func Names(handlers []Handler) []string {
	var names []string
	for _, h := range handlers {
		names = append(names, h.Name)
	}
	return names
}
