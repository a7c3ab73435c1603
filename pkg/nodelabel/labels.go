package nodelabel

import (
	"slices"
	"strconv"
	"strings"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// Fact is a key with its value. Both are what Kubernetes allows for labels.
type Fact struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Known is what is known of one handler.
type Known struct {
	Name  string
	Phase handler.Phase
	// Default says that pods without a class get it.
	Default bool
	// MaxPods is how many pods it takes; zero is not bounded.
	MaxPods int
	Can     capability.Table
}

const (
	isolation = "isolation"
	state     = "state"
)

// labelled are the capabilities that are labels. They are few, because every label of a
// node is in every message about that node.
var labelled = []capability.Name{capability.UserNamespaces, capability.RecursiveReadOnlyMounts, capability.Checkpoint}

// Labels are those of a node with these handlers. Those that say which handlers take
// pods come first, so that they are what is left if there is no room for all. Pure.
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

// Presence are the labels that stay: all handlers have one, whether they take pods or
// not. Pure.
func Presence(handlers []Known) []Fact {
	var all []Fact
	for _, h := range sorted(handlers) {
		all = append(all, Fact{Present(h.Name), True})
	}
	return all
}

// States are no labels: they are for rules that make something of handlers which take
// no pods. Pure.
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
