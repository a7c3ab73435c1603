package nodelabel

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Fact is a key with its value. Both are valid for Kubernetes labels.
type Fact struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Known holds the facts about one handler.
type Known struct {
	Name  string
	Phase handler.Phase
	// Default means that pods without a class get the handler.
	Default bool
	// MaxPods is the largest number of its pods; zero means no limit.
	MaxPods int
	Can     capability.Table
}

const (
	isolation = "isolation"
	state     = "state"
)

// labelled are the capabilities with a label. They are few, because every message about a node
// contains all of its labels.
var labelled = []capability.Name{capability.UserNamespaces, capability.RecursiveReadOnlyMounts, capability.Checkpoint}

// Labels returns the labels of the ready handlers. One label of each handler comes first, so that
// these are kept if not all labels fit. Pure.
func Labels(handlers []Known) []Fact {
	var ready, rest []Fact
	for _, h := range sorted(handlers) {
		if h.Phase != handler.Ready {
			continue
		}
		ready = append(ready, Fact{Handler(h.Name), Ready})
		if h.Default {
			rest = append(rest, Fact{Default(h.Name), True})
		}
		if h.MaxPods > 0 {
			rest = append(rest, Fact{MaxPods(h.Name), strconv.Itoa(h.MaxPods)})
		}
		if h.Can.Isolation != "" {
			rest = append(rest, Fact{About(h.Name, isolation), string(h.Can.Isolation)})
		}
		for _, name := range labelled {
			if h.Can.Of(name).Answer == capability.Yes {
				rest = append(rest, Fact{About(h.Name, string(name)), True})
			}
		}
	}
	return append(ready, rest...)
}

// Presence returns the lasting labels: one for each handler, whether it takes pods or not. Pure.
func Presence(handlers []Known) []Fact {
	var all []Fact
	for _, h := range sorted(handlers) {
		all = append(all, Fact{Present(h.Name), True})
	}
	return all
}

// States returns the phase of each handler as a feature for rules. Features are not labels. Pure.
func States(handlers []Known) []Fact {
	var all []Fact
	for _, h := range sorted(handlers) {
		all = append(all, Fact{About(h.Name, state), string(h.Phase)})
	}
	return all
}

func sorted(handlers []Known) []Known {
	return slices.SortedFunc(slices.Values(handlers), func(a, b Known) int { return strings.Compare(a.Name, b.Name) })
}
