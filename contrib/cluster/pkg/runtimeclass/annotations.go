package runtimeclass

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Annotations of classes, for users without the right to read nodes.
const (
	// IsolationAnnotation is the isolation of the handler.
	IsolationAnnotation = "berth.dev/isolation"
	// CapabilitiesAnnotation holds the handler's capabilities, as JSON.
	CapabilitiesAnnotation = "berth.dev/capabilities"
	// ConformsAnnotation holds the conformance sets that self-check pods confirmed, separated by
	// commas.
	ConformsAnnotation = "berth.dev/conforms"
	// DefaultAnnotation is "true" if pods without a class get the handler, too.
	DefaultAnnotation = "berth.dev/default"
)

// Annotations lists the keys of all annotations.
var Annotations = []string{IsolationAnnotation, CapabilitiesAnnotation, ConformsAnnotation, DefaultAnnotation}

// annotations returns the known facts about a handler as annotations of its class.
func (h Handler) annotations() map[string]string {
	all := map[string]string{}
	if h.Isolation != "" {
		all[IsolationAnnotation] = string(h.Isolation)
	}
	if len(h.Conforms) > 0 {
		all[ConformsAnnotation] = strings.Join(h.Conforms, ",")
	}
	if known := h.everywhere(); len(known) > 0 {
		text, err := json.Marshal(known)
		if err != nil {
			panic("runtimeclass: " + err.Error()) // strings can be encoded
		}
		all[CapabilitiesAnnotation] = string(text)
	}
	if h.Default {
		all[DefaultAnnotation] = "true"
	}
	return all
}

// everywhere returns the capabilities that hold for the handler on any node, because a class is for
// all nodes. It omits answers from one node's probe, and failures of self-check pods. It omits
// sources, which users of the class do not need.
func (h Handler) everywhere() map[capability.Name]capability.Known {
	kept := map[capability.Name]capability.Known{}
	for name, k := range h.Capabilities {
		switch {
		case k.Source == capability.Probed:
		case k.Answer == capability.Yes:
			kept[name] = capability.Known{Answer: k.Answer}
		case k.Answer == capability.No && k.Source != capability.Ran:
			kept[name] = capability.Known{Answer: k.Answer, Note: k.Note}
		}
	}
	return kept
}

// Annotated returns the handler of a class as its annotations describe it. Without annotations,
// only its name is known.
func (c Class) Annotated() (Handler, error) {
	h := Handler{Name: c.Handler}
	problem := func(key, format string, args ...any) error {
		return Problem{Source: c.Source, Field: fmt.Sprintf("metadata.annotations[%s]", key), Text: fmt.Sprintf("annotation %s of RuntimeClass %s ", key, c.Name) + fmt.Sprintf(format, args...)}
	}
	h.Isolation = capability.Isolation(strings.TrimSpace(c.Annotations[IsolationAnnotation]))
	if err := h.Validate(); err != nil {
		return Handler{}, problem(IsolationAnnotation, "has the wrong value: %v", err)
	}
	for name := range strings.SplitSeq(c.Annotations[ConformsAnnotation], ",") {
		if name = strings.TrimSpace(name); name != "" {
			h.Conforms = append(h.Conforms, name)
		}
	}
	switch value := c.Annotations[DefaultAnnotation]; value {
	case "true":
		h.Default = true
	case "", "false":
	default:
		return Handler{}, problem(DefaultAnnotation, "is %q; it must be true or false", value)
	}
	if text := c.Annotations[CapabilitiesAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &h.Capabilities); err != nil {
			return Handler{}, problem(CapabilitiesAnnotation, "is not a mapping of capabilities: %v", plain(err))
		}
	}
	if err := h.Validate(); err != nil {
		return Handler{}, problem(CapabilitiesAnnotation, "has a wrong value: %v", err)
	}
	return h, nil
}
