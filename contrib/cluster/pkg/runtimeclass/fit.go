package runtimeclass

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Preference is what handlers that can run a pod are ordered by.
type Preference string

// Preferences.
const (
	// PreferIsolation puts the strongest isolation first, then the least overhead.
	PreferIsolation Preference = "isolation"
	// PreferOverhead puts the least measured memory first, then the strongest isolation.
	PreferOverhead Preference = "overhead"
)

// Preferences are all there are.
var Preferences = []Preference{PreferIsolation, PreferOverhead}

// MissingCapability is something that a pod asks for and that a handler does not have, or is
// not known to have.
type MissingCapability struct {
	Requirement
	capability.Known
}

func (l MissingCapability) String() string {
	return fmt.Sprintf("%s needs %s%s", l.Requirement, l.Capability, l.Because())
}

// Because is the part that does not depend on the pod.
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
	Handler string `json:"handler"`
	// Fits is no if something is lacking, the handler takes no pods, or the API server or
	// the policies not this one, and unknown if nobody knows about something.
	Fits capability.Answer `json:"fits"`
	// Classes are those that have the handler.
	Classes   []string             `json:"classes,omitempty"`
	Default   bool                 `json:"default,omitempty"`
	Isolation capability.Isolation `json:"isolation,omitempty"`
	// Overhead is nil if nothing was measured.
	Overhead *Measurement `json:"overhead,omitempty"`
	// TakesNoPods says why, or is empty.
	TakesNoPods string `json:"takesNoPods,omitempty"`
	// Places says which containers request pods of a handler by themselves.
	Places []string `json:"places,omitempty"`
	// Rejection is what the API server says against the pod, on its way to this handler.
	Rejection string              `json:"rejection,omitempty"`
	Missing   []MissingCapability `json:"lacks,omitempty"`
}

// Reasons are why a handler does not fit, or may not.
func (v Verdict) Reasons() []string {
	var all []string
	for _, whole := range []string{v.Rejection, v.TakesNoPods} {
		if whole != "" {
			all = append(all, whole)
		}
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

// Fit holds a pod against handlers. The first verdict is about the one to prefer:
// those that fit, then those of which that is not known, then the others, each by
// preference. Equal ones are by name, the default handler first.
//
// Admission is asked about the handler that the pod leads to as it is: that of its
// class, if that is among classes, and without a class the default one. For any other
// handler the pod would have to be another one first.
func Fit(pod *corev1.Pod, handlers []Handler, classes []Class, p Preference) []Verdict {
	wanted, places := Requirements(pod), placesOf(pod)
	all := []Verdict{}
	for _, h := range handlers {
		v := verdict(h, wanted, classes)
		if v.Rejection = refused(pod, h, classes); v.Rejection != "" {
			v.Fits = capability.No
		}
		if v.Places = places; len(places) > 0 {
			v.Fits = capability.No
		}
		all = append(all, v)
	}
	slices.SortStableFunc(all, func(a, b Verdict) int {
		isolation, overhead := cmp.Compare(strength(b.Isolation), strength(a.Isolation)), compareOverhead(a.Overhead, b.Overhead)
		if p == PreferOverhead {
			isolation, overhead = overhead, isolation
		}
		return cmp.Or(cmp.Compare(rank(a.Fits), rank(b.Fits)), isolation, overhead, -compareBool(a.Default, b.Default), cmp.Compare(a.Handler, b.Handler))
	})
	return all
}

// OfItsClass is the verdict about the handler that a pod's class leads to, and why there is
// none; a pod without a class has the first verdict. Pure.
func OfItsClass(pod *corev1.Pod, classes []Class, all []Verdict) (capability.Answer, string) {
	name := pod.Spec.RuntimeClassName
	if name == nil {
		if len(all) == 0 {
			return capability.No, "the list of handlers is empty"
		}
		return all[0].Fits, ""
	}
	c := named(classes)[*name]
	if c == nil {
		return capability.No, fmt.Sprintf("it names RuntimeClass %q, which is not among the classes", *name)
	}
	i := slices.IndexFunc(all, func(v Verdict) bool { return v.Handler == c.Handler })
	if i < 0 {
		return capability.No, fmt.Sprintf("its RuntimeClass %q has the handler %q, which is not among the handlers", *name, c.Handler)
	}
	if all[i].Fits == capability.No {
		return capability.No, fmt.Sprintf("its RuntimeClass %q leads to the handler %q, which cannot run it", *name, c.Handler)
	}
	return all[i].Fits, ""
}

// refused is what the API server says against a pod that leads to a handler; empty
// if it admits the pod, or the pod does not lead there.
func refused(pod *corev1.Pod, h Handler, classes []Class) string {
	leads := h.Default
	if name := pod.Spec.RuntimeClassName; name != nil {
		c := named(classes)[*name]
		leads = c != nil && c.Handler == h.Name
	}
	if !leads {
		return ""
	}
	return Admit(pod, classes).Rejection
}

func verdict(h Handler, wanted []Requirement, classes []Class) Verdict {
	v := Verdict{Handler: h.Name, Fits: capability.Yes, Default: h.Default, Isolation: h.Isolation, Overhead: h.measured()}
	for _, c := range classes {
		if c.Handler == h.Name && !slices.Contains(v.Classes, c.Name) {
			v.Classes = append(v.Classes, c.Name)
		}
	}
	for _, r := range wanted {
		k := h.Of(r.Capability)
		if k.Answer == capability.Yes {
			continue
		}
		v.Missing = append(v.Missing, MissingCapability{r, k})
		if v.Fits != capability.No {
			v.Fits = k.Answer
		}
	}
	if v.TakesNoPods = h.WhyNot(); v.TakesNoPods != "" {
		v.Fits = capability.No
	}
	return v
}

func rank(a capability.Answer) int {
	return slices.Index([]capability.Answer{capability.Yes, capability.Unknown, capability.No}, a)
}

func strength(i capability.Isolation) int {
	return slices.Index([]capability.Isolation{capability.SharedKernel, capability.UserSpaceKernel, capability.VM}, i)
}

// compareOverhead puts what was not measured last.
func compareOverhead(a, b *Measurement) int {
	if a == nil || b == nil {
		return compareBool(a == nil, b == nil)
	}
	return cmp.Or(a.Memory.P95.Cmp(b.Memory.P95), a.CPU.P95.Cmp(b.CPU.P95))
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
