package policy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// class is a RuntimeClass with its handler's capabilities.
type class struct {
	// name is empty for pods without a class, which get the default handler.
	name     string
	handler  runtimeclass.Handler
	overhead corev1.ResourceList
}

// takesPods reports whether the handler takes pods; it is always true unless Options.State is set.
func (c class) takesPods(o Options) bool { return !o.State || c.handler.WhyNot() == "" }

// lacks returns the capabilities that pods can request and that have one of the answers.
func (c class) lacks(answers ...capability.Answer) []capability.Name {
	var all []capability.Name
	for _, name := range runtimeclass.Asked() {
		if slices.Contains(answers, c.handler.Of(name).Answer) {
			all = append(all, name)
		}
	}
	return all
}

// known returns the classes with a known handler, sorted by name. If the default handler is known,
// the first has no name: it is for pods without a class.
func known(o Options) ([]class, error) {
	var all []class
	var defaults []runtimeclass.Handler
	for _, h := range o.Handlers {
		if h.Default {
			defaults = append(defaults, h)
		}
	}
	for _, c := range o.Classes {
		h, listed := runtimeclass.ByName(o.Handlers, c.Handler)
		if !listed {
			var err error
			if h, err = c.Annotated(); err != nil {
				return nil, err
			}
			if _, there := runtimeclass.ByName(defaults, h.Name); h.Default && !there {
				defaults = append(defaults, h)
			}
		}
		if !listed && h.Empty() {
			continue
		}
		one := class{name: c.Name, handler: h}
		if c.Overhead != nil {
			one.overhead = c.Overhead.PodFixed
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b class) int { return cmp.Compare(a.name, b.name) })
	if o.Default != "" {
		h, err := defaultHandler(o, all)
		if err != nil {
			return nil, err
		}
		defaults = []runtimeclass.Handler{h}
	}
	switch {
	case len(defaults) > 1:
		return nil, fmt.Errorf("more than one default handler: %s; choose one by --default", strings.Join(runtimeclass.Names(defaults), ", "))
	case len(defaults) == 1:
		all = slices.Insert(all, 0, class{handler: defaults[0]})
	}
	for i := range all {
		all[i].handler = clusterWide(all[i].handler, all[i].name == "" && o.Default == "")
	}
	if len(all) == 0 {
		return nil, errors.New("nothing is known of what handlers can do: use --handlers with the output of \"berth capabilities -o json\", or classes that \"kubectl berth generate\" made from that output")
	}
	return all, nil
}

// ignored are capabilities for which no node refuses a pod: the pod runs without them.
var ignored = []capability.Name{capability.Sysctls}

// clusterWide returns a handler as it applies to pods of the whole cluster.
func clusterWide(h runtimeclass.Handler, unchosen bool) runtimeclass.Handler {
	if unchosen {
		return h.Unchosen()
	}
	h = h.Anywhere()
	for _, name := range ignored {
		if h.Of(name).Answer == capability.No {
			h.SetUnknown(name, "")
		}
	}
	return h
}

// defaultHandler returns the handler that Options.Default names.
func defaultHandler(o Options, all []class) (runtimeclass.Handler, error) {
	handlers := slices.Clone(o.Handlers)
	for _, c := range all {
		if _, there := runtimeclass.ByName(handlers, c.handler.Name); !there {
			handlers = append(handlers, c.handler)
		}
	}
	if h, ok := runtimeclass.ByName(handlers, o.Default); ok {
		return h, nil
	}
	return runtimeclass.Handler{}, fmt.Errorf("--default: handler %q is not known; known are %s", o.Default, strings.Join(runtimeclass.Names(handlers), ", "))
}

// Notes lists omissions of the policies, and likely mistakes in the options, a line each.
func Notes(o Options) []string {
	all, err := known(o)
	if err != nil {
		return nil
	}
	var notes []string
	is := func(name string) bool { return slices.ContainsFunc(all, func(c class) bool { return c.name == name }) }
	for _, c := range o.Classes {
		if !is(c.Name) {
			notes = append(notes, fmt.Sprintf("nothing is known of class %s: its pods are not checked; generate the class again, or use --handlers", c.Name))
		}
	}
	slices.Sort(notes)
	if !is("") {
		notes = append(notes, "the handler of pods without a class is not known: these pods are not checked; use --default")
	}
	for _, r := range o.Rules {
		matters := slices.ContainsFunc(r.Namespaces.Names, func(name string) bool { return !slices.Contains(o.Exempt, name) })
		if len(r.Namespaces.Names) > 0 && !matters {
			notes = append(notes, fmt.Sprintf("rule %s matches no pods: all of its namespaces are exempt", r.Name))
		}
	}
	stronger := slices.ContainsFunc(all, func(c class) bool {
		return c.name != "" && c.takesPods(o) && c.handler.Isolation.OwnKernel()
	})
	for _, r := range o.Rules {
		if r.Isolation == Strongest && r.Least == "" && !stronger {
			notes = append(notes, fmt.Sprintf("rule %s gives pods no more than shared-kernel: no class gives vm or user-space-kernel; with least: user-space-kernel it fails instead", r.Name))
		}
	}
	return notes
}
