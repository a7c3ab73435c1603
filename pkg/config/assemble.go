package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// assembly merges documents into one Config.
type assembly struct {
	validator
	options Options
	// defs are the handlers by name; byMain are the names in the main file and the discovered ones.
	defs   map[string]*handler.Definition
	byMain []string
}

// assemble reads no files of berth's own, but checks paths, imports files and discovers runtimes.
func assemble(docs []*document, o Options) (*Config, Problems) {
	a := &assembly{validator: validator{cfg: Default()}, options: o, defs: map[string]*handler.Definition{}}
	a.cfg.SearchPath = o.SearchPath
	for _, d := range docs {
		a.sections(d)
	}
	a.flags()
	for _, d := range docs {
		a.runtimes(d)
	}
	a.validate()
	a.imported(docs)
	a.cfg.watched = watched(o, a.cfg.Import)
	if !handlersInMain(docs) {
		a.discover()
	}
	a.awaitDefault(docs)
	if a.cfg.Discovered && len(a.defs)+len(a.cfg.Broken) == 0 {
		a.problems = append(a.problems, nothingFound(a.options.searchPath()))
	}
	a.resolveAliases()
	slices.SortFunc(a.cfg.Broken, func(x, y Broken) int { return strings.Compare(x.Name, y.Name) })
	a.cfg.Runtimes = sortedByName(a.defs)
	a.defaultRuntime(docs)
	a.helpers()
	return a.cfg, a.problems
}

// sections merges one document's keys over those of earlier documents.
func (a *assembly) sections(doc *document) {
	d := newDecoder(doc, a.options.SearchPath, nil)
	d.Table(sectionTop, "", doc.Values, reflect.ValueOf(a.cfg).Elem(), "runtimes")
	a.problems = append(a.problems, doc.Problems...)
	a.problems = append(a.problems, d.Problems...)
	a.cfg.Sources = append(a.cfg.Sources, doc.File)
	for key, o := range doc.Origins {
		if !strings.HasPrefix(key, "runtimes.") {
			a.cfg.origins[key] = o
		}
	}
}

// runtimes adds one document's handlers. Each handler belongs to one file.
func (a *assembly) runtimes(doc *document) {
	d := newDecoder(doc, a.options.SearchPath, a.cfg.snapshotterNames())
	defer func() { a.problems = append(a.problems, d.Problems...) }()
	tables, ok := doc.Values["runtimes"].(map[string]any)
	if !ok {
		if v, there := doc.Values["runtimes"]; there {
			d.WrongType("runtimes", "a table", v)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		if first := a.defs[name]; first != nil {
			d.Report(tomlfile.Under("runtimes", name), fmt.Sprintf("handler %q is already configured at %s; keep one of the two", name, first.Origin), "")
			continue
		}
		if def := d.runtime(name, tables[name], a.cfg.Engine); def != nil {
			a.add(doc, def)
		}
	}
}

func (a *assembly) add(doc *document, def *handler.Definition) {
	a.defs[def.Name] = def
	if doc.main {
		a.byMain = append(a.byMain, def.Name)
	}
	prefix := tomlfile.Under("runtimes", def.Name)
	for key, o := range doc.Origins {
		if key == prefix || strings.HasPrefix(key, prefix+".") {
			a.cfg.origins[key] = o
		}
	}
}

// handlersInMain reports whether the main file has handlers, or is too damaged to determine that.
func handlersInMain(docs []*document) bool {
	return slices.ContainsFunc(docs, func(d *document) bool {
		tables, _ := d.Values["runtimes"].(map[string]any)
		return d.main && (len(tables) > 0 || len(d.Problems) > 0)
	})
}

// discover adds the runtimes of this machine. A handler of a drop-in or an import, even a broken
// one, replaces the discovered one: a pod must not silently get another runtime than the configured
// one.
func (a *assembly) discover() {
	a.cfg.Discovered = true
	found := Discover(a.options.searchPath())
	for _, def := range append(found, a.vanished(found)...) {
		a.byMain = append(a.byMain, def.Name)
		if a.defs[def.Name] != nil || a.reasonOf(def.Name) != "" {
			continue
		}
		if of := a.defs[def.AliasOf]; of == nil || of.Path != def.Path {
			def.AliasOf = "" // another runtime has that name
		}
		a.cfg.elsewhere[def.Name] = true
		def.Snapshotter = a.cfg.Engine.Snapshotter
		if def.Type == handler.OCI {
			def.Supervision = a.cfg.Engine.Supervision
		}
		a.defs[def.Name] = def
	}
}

func nothingFound(dirs []string) Problem {
	return Problem{Key: "runtimes", Message: fmt.Sprintf(
		"no handlers configured and no runtimes found in %s; install one (on Debian: apt-get install crun), "+
			"or configure [runtimes.<handler>] with its runtime_path in %s", shortList(dirs), DefaultFile)}
}

// known returns the names of all handlers, including those that cannot be served.
func (a *assembly) known(docs []*document) []string {
	names := slices.Collect(maps.Keys(a.defs))
	for _, d := range docs {
		names = append(names, d.handlers...)
	}
	for _, b := range a.cfg.Broken {
		names = append(names, b.Name)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// helpers finds those of berth's own binaries that no file gives a path for.
func (a *assembly) helpers() {
	e := &a.cfg.Engine
	for path, name := range map[*string]string{&e.ShimPath: "berth-shim", &e.PausePath: "berth-pause"} {
		if *path == "" {
			*path = helperPath(name, a.cfg.SearchPath)
		}
	}
}
