package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// alias checks a table that only gives another handler one more name. What it
// returns stands for that handler until resolveAliases.
func (d *decoder) alias(name, key string, values map[string]any, t *runtimeTable) *handler.Definition {
	at := tomlfile.Under(key, "alias_of")
	for _, other := range slices.Sorted(maps.Keys(values)) {
		if other != "alias_of" {
			d.Report(tomlfile.Under(key, other), "cannot be combined with alias_of, which takes all settings from the other handler; remove one of the two", "")
		}
	}
	switch {
	case !isString(values["alias_of"]):
		// Its wrong type is reported already.
	case t.AliasOf == "":
		d.Report(at, "must name the handler that "+name+" is an alias of", "")
	case t.AliasOf == name:
		d.Report(at, "must be another handler, not "+name+" itself", "")
	default:
		return &handler.Definition{Name: name, AliasOf: t.AliasOf, Origin: d.Doc.Origins[key].String()}
	}
	return nil
}

// resolveAliases makes aliases what they are other names of. One of a handler
// that is not served is not served either.
func (a *assembly) resolveAliases() {
	v := &validator{cfg: a.cfg}
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
			if aliases[meant] != "" { // in a circle nothing is meant
				meant = ""
			}
			v.wrong(key, fmt.Sprintf("%q is itself an alias; use the handler that it points to", of), meant)
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
			v.wrong(key, fmt.Sprintf("handler %q does not exist; the handlers are %s", of, strings.Join(others, ", ")), near)
		}
		delete(a.defs, name)
	}
	a.problems = append(a.problems, v.problems...)
}

// reasonOf says why a handler is not served, or nothing.
func (a *assembly) reasonOf(name string) string {
	for _, b := range a.cfg.Broken {
		if b.Name == name {
			return b.Reason
		}
	}
	return ""
}
