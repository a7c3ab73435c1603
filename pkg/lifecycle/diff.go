package lifecycle

import (
	"slices"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// Diff is what one configuration has and another has not. Names are sorted.
type Diff struct {
	Added, Changed, Removed []string
	// DefaultFrom and DefaultTo differ if the default handler changed.
	DefaultFrom, DefaultTo string
}

// Empty says that there is no difference.
func (d Diff) Empty() bool {
	return len(d.Added)+len(d.Changed)+len(d.Removed) == 0 && d.DefaultFrom == d.DefaultTo
}

// Compare tells what becomes of handlers when next takes the place of before.
// Where a Definition is written counts for nothing. Pure.
func Compare(before, next *config.Config) Diff {
	d := Diff{DefaultFrom: before.DefaultRuntime, DefaultTo: next.DefaultRuntime}
	old, now := digests(before), digests(next)
	for name, digest := range now {
		switch was, known := old[name]; {
		case !known:
			d.Added = append(d.Added, name)
		case was != digest:
			d.Changed = append(d.Changed, name)
		}
	}
	for name := range old {
		if _, stays := now[name]; !stays {
			d.Removed = append(d.Removed, name)
		}
	}
	slices.Sort(d.Added)
	slices.Sort(d.Changed)
	slices.Sort(d.Removed)
	return d
}

// digests are those of all handlers by name. A broken one has none of its own:
// whatever it becomes is a change.
func digests(c *config.Config) map[string]string {
	all := map[string]string{}
	for _, d := range c.Runtimes {
		all[d.Name] = d.Digest()
	}
	for _, b := range c.Broken {
		all[b.Name] = "broken: " + b.Reason
	}
	return all
}

// definitions are the handlers that can be probed, by name.
func definitions(c *config.Config) map[string]*handler.Definition {
	all := map[string]*handler.Definition{}
	for _, d := range c.Runtimes {
		all[d.Name] = d
	}
	return all
}
