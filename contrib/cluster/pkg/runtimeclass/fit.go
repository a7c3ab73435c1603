package runtimeclass

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// MissingCapability is a requirement of a pod that a handler does not meet, or is not known to
// meet.
type MissingCapability struct {
	Requirement
	capability.Known
}

func (l MissingCapability) String() string {
	return fmt.Sprintf("%s needs %s%s", l.Requirement, l.Capability, l.Because())
}

// Because returns the part of the message that does not depend on the pod.
func (l MissingCapability) Because() string {
	text := ", but the handler does not support it"
	if l.Answer == capability.Unknown {
		text = ", but the handler may not support it"
	}
	if l.Note != "" {
		text += ": " + l.Note
	}
	return text
}

// Verdict is whether a handler can run a pod.
type Verdict struct {
	// Fits is no if a capability is missing, the handler takes no pods, or Places is not empty;
	// else unknown if a capability is unknown.
	Fits capability.Answer
	// TakesNoPods is why the handler takes no pods, or empty.
	TakesNoPods string
	// Places are the reasons against containers that request a resource that counts pods.
	Places  []string
	Missing []MissingCapability
}

// Reasons returns why a handler cannot run the pod, or why this is unknown.
func (v Verdict) Reasons() []string {
	var all []string
	if v.TakesNoPods != "" {
		all = append(all, v.TakesNoPods)
	}
	all = append(all, v.Places...)
	for _, want := range []capability.Answer{capability.No, capability.Unknown} {
		for _, l := range v.Missing {
			if l.Answer == want {
				all = append(all, l.String())
			}
		}
	}
	return all
}

// Fit checks a pod against a handler.
func Fit(pod *corev1.Pod, h Handler) Verdict {
	v := Verdict{Fits: capability.Yes, TakesNoPods: h.WhyNot(), Places: placesOf(pod)}
	for _, r := range Requirements(pod) {
		k := h.Of(r.Capability)
		if k.Answer == capability.Yes {
			continue
		}
		v.Missing = append(v.Missing, MissingCapability{r, k})
		if v.Fits != capability.No {
			v.Fits = k.Answer
		}
	}
	if v.TakesNoPods != "" || len(v.Places) > 0 {
		v.Fits = capability.No
	}
	return v
}
