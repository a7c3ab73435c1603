package config

import (
	"maps"
	"slices"
	"strings"
)

// Load reads, merges and validates a configuration. The error is Problems with
// every mistake there is, but for those in imported files: these only make
// handlers Broken. It may be called at any time from any goroutine.
func Load(o Options) (*Config, error) {
	docs := readAll(o)
	if !o.TolerateDropIns {
		cfg, problems := assemble(docs, o, nil, foreignCache{})
		if len(problems) > 0 {
			return nil, problems.sorted()
		}
		return cfg, nil
	}
	return loadTolerantly(docs, o)
}

// loadTolerantly leaves out drop-ins with mistakes until the rest has none. It
// ends because each round leaves out one at least.
func loadTolerantly(docs []*document, o Options) (*Config, error) {
	lost, foreign := map[string]Broken{}, foreignCache{}
	var left Problems
	for {
		cfg, problems := assemble(docs, o, lost, foreign)
		bad, fatal := blame(docs, problems)
		if fatal {
			return nil, slices.Concat(left, problems).sorted()
		}
		if len(bad) == 0 {
			cfg.leaveOut(problems, left, lost)
			return cfg, nil
		}
		docs = slices.DeleteFunc(docs, func(d *document) bool {
			why, out := bad[d.file]
			if out {
				left = append(left, why...)
				d.lose(lost, why.sorted())
			}
			return out
		})
	}
}

// blame sorts mistakes by the drop-in that is at fault, and says whether there
// is one that is no drop-in's. What a machine lacks is no file's fault. Pure.
func blame(docs []*document, problems Problems) (bad map[string]Problems, fatal bool) {
	bad = map[string]Problems{}
	for _, p := range problems {
		switch {
		case p.handler != "":
		case slices.ContainsFunc(docs, func(d *document) bool { return d.file == p.File && !d.main }):
			bad[p.File] = append(bad[p.File], p)
		default:
			fatal = true
		}
	}
	return bad, fatal
}

// lose notes the handlers of a drop-in that is left out.
func (d *document) lose(lost map[string]Broken, why Problems) {
	for _, name := range d.handlers {
		if _, known := lost[name]; known {
			continue
		}
		origin, known := d.origins[under("runtimes", name)]
		if !known {
			origin = Origin{File: d.file}
		}
		lost[name] = Broken{Name: name, Origin: origin.String(), Reason: clip(reasonFor(name, why))}
	}
}

// reasonFor prefers a mistake in the handler's own table to others of its file.
func reasonFor(name string, why Problems) string {
	key := under("runtimes", name)
	for _, p := range why {
		if p.Key == key || strings.HasPrefix(p.Key, key+".") {
			return p.Error()
		}
	}
	return why[0].Error()
}

// maxReason bounds Broken.Reason, which is part of what a CRI client reads.
const maxReason = 512

func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	return strings.ToValidUTF8(s[:maxReason], "") + "..."
}

func (c *Config) broken(name string) bool {
	return slices.ContainsFunc(c.Broken, func(b Broken) bool { return b.Name == name })
}

// leaveOut moves the handlers that this machine lacks something for from
// Runtimes to Broken, and adds those of drop-ins that were left out.
func (c *Config) leaveOut(lacking, left Problems, lost map[string]Broken) {
	c.Problems = slices.Concat(c.Problems, lacking, left).sorted()
	broken := maps.Clone(lost)
	for _, b := range c.Broken {
		broken[b.Name] = b
	}
	c.Broken = nil
	for _, d := range c.Runtimes {
		delete(broken, d.Name)
	}
	for _, p := range lacking.sorted() {
		if _, known := broken[p.handler]; !known {
			broken[p.handler] = Broken{Name: p.handler, Origin: c.Origin(under("runtimes", p.handler)).String(), Reason: clip(p.Error())}
		}
	}
	kept := c.Runtimes[:0]
	for _, d := range c.Runtimes {
		if _, out := broken[d.Name]; !out {
			kept = append(kept, d)
		}
	}
	c.Runtimes = kept
	for _, name := range slices.Sorted(maps.Keys(broken)) {
		c.Broken = append(c.Broken, broken[name])
	}
}
