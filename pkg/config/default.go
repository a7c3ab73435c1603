package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// wantedDefault returns the default handler that a file sets, else the one that a running daemon
// chose among discovered ones. That choice stays until a file sets another or the daemon restarts:
// a package that is missing for a moment, or a new one, must not move pods that name no handler.
func (a *assembly) wantedDefault() string {
	r := a.options.Running
	if a.cfg.DefaultRuntime == "" && r != nil && r.defaultChosen && r.Discovered && a.cfg.Discovered {
		return r.DefaultRuntime
	}
	return a.cfg.DefaultRuntime
}

// vanished returns the default handler of a running daemon if it was discovered and is no longer
// found: it stays configured, but is not ready.
func (a *assembly) vanished(found []*handler.Definition) []*handler.Definition {
	r := a.options.Running
	if r == nil || !r.Discovered {
		return nil
	}
	name := a.wantedDefault()
	is := func(d *handler.Definition) bool { return d.Name == name && strings.HasPrefix(d.Origin, discoveredIn) }
	if slices.ContainsFunc(found, is) {
		return nil
	}
	i := slices.IndexFunc(r.Runtimes, is)
	if i < 0 {
		return nil
	}
	kept := *r.Runtimes[i]
	return []*handler.Definition{&kept}
}

// awaitDefault adds, as a broken handler, a missing default handler that may come later, so that
// the others are served.
func (a *assembly) awaitDefault(docs []*document) {
	name := a.wantedDefault()
	if name != "" && !slices.Contains(a.known(docs), name) {
		a.await(name, "default_runtime")
	}
}

// await reports whether a missing handler may appear later, and adds it as a broken one if so. key
// is the key that names it.
func (a *assembly) await(name, key string) bool {
	if !a.mayCome(name) || handler.ValidName(name) != nil {
		return false
	}
	where := "on this machine"
	if a.imports() {
		where = "in the files of [import]"
	}
	p := a.problem(key, fmt.Sprintf("handler %q does not exist %s; pods that request it are rejected until it does", name, where), "")
	p.Lacking = name
	a.cfg.Problems = append(a.cfg.Problems, p)
	a.cfg.Broken = append(a.cfg.Broken, Broken{Name: name, Origin: p.Origin.String(), Reason: clip(p.Error())})
	a.cfg.elsewhere[name] = true
	return true
}

func (a *assembly) imports() bool { return len(a.cfg.Import.CRIO)+len(a.cfg.Import.Containerd) > 0 }

// mayCome reports whether a missing handler may come from outside berth's own files. At a start,
// any name may come from an import, and a name in ociHandlers from discovery; at a reload, only
// names that came from there before.
func (a *assembly) mayCome(name string) bool {
	if r := a.options.Running; r != nil {
		return r.elsewhere[name] && (a.imports() || a.cfg.Discovered)
	}
	return a.imports() || a.cfg.Discovered && slices.Contains(ociHandlers, name)
}

// defaultRuntime checks or chooses the default handler. A missing default_runtime is reported at
// the top of the main file.
func (a *assembly) defaultRuntime(docs []*document) {
	known := a.known(docs)
	if len(known) == 0 {
		return
	}
	switch name := a.cfg.DefaultRuntime; {
	case name == "":
		a.cfg.defaultChosen = true
		if a.cfg.DefaultRuntime = a.wantedDefault(); !slices.Contains(known, a.cfg.DefaultRuntime) {
			a.cfg.DefaultRuntime = chooseDefault(a.byMain, known)
		}
		if a.cfg.DefaultRuntime == "" {
			top := Origin{File: a.options.mainFile()}
			if slices.ContainsFunc(docs, func(d *document) bool { return d.main }) {
				top.Line, top.Column = 1, 1
			}
			a.problems = append(a.problems, Problem{
				Origin: top, Key: "default_runtime",
				Message: fmt.Sprintf("is missing; name one of the handlers %s, above the first table", strings.Join(known, ", ")),
			})
		}
	case !slices.Contains(known, name):
		near, _ := handler.Suggest(name, known)
		a.wrong("default_runtime", fmt.Sprintf("handler %q does not exist; the handlers are %s", name, strings.Join(known, ", ")), near)
	}
}

// chooseDefault returns the default handler of a configuration that sets none, or "". Handlers of
// drop-ins and imports count only if there are no others, so that they replace no default. Pure.
func chooseDefault(byMain, known []string) string {
	among := byMain
	if len(among) == 0 {
		among = known
	}
	if len(among) == 1 {
		return among[0]
	}
	for _, r := range ociHandlers {
		if slices.Contains(among, r) {
			return r
		}
	}
	return ""
}

// resolveAliases replaces aliases by copies of their handlers. The alias of a handler that cannot
// be served is not served either.
func (a *assembly) resolveAliases() {
	aliases := map[string]string{}
	for _, d := range a.defs {
		if d.AliasOf != "" {
			aliases[d.Name] = d.AliasOf
		}
	}
	for _, name := range slices.Sorted(maps.Keys(aliases)) {
		stub, of := a.defs[name], aliases[name]
		key := tomlfile.Under(tomlfile.Under("runtimes", name), "alias_of")
		target := a.defs[of]
		switch {
		case aliases[of] != "":
			meant := aliases[of]
			if aliases[meant] != "" { // also an alias
				meant = ""
			}
			a.wrong(key, fmt.Sprintf("%q is itself an alias; use the handler that it points to", of), meant)
		case target != nil:
			same := *target
			same.Name, same.Origin, same.AliasOf = name, stub.Origin, of
			a.defs[name] = &same
			continue
		case a.reasonOf(of) != "", a.await(of, key):
			a.cfg.Broken = append(a.cfg.Broken, Broken{
				Name: name, Origin: stub.Origin, Reason: clip(fmt.Sprintf("it is an alias of %q: %s", of, a.reasonOf(of))),
			})
		default:
			others := slices.Sorted(maps.Keys(a.defs))
			others = slices.DeleteFunc(others, func(other string) bool { return aliases[other] != "" })
			near, _ := handler.Suggest(of, others)
			a.wrong(key, fmt.Sprintf("handler %q does not exist; the handlers are %s", of, strings.Join(others, ", ")), near)
		}
		delete(a.defs, name)
	}
}

func (a *assembly) reasonOf(name string) string {
	for _, b := range a.cfg.Broken {
		if b.Name == name {
			return b.Reason
		}
	}
	return ""
}
