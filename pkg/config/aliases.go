package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// resolveAliases makes aliases what they are other names of. One of a handler
// that is not served is not served either.
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
			if aliases[meant] != "" { // in a circle nothing is meant
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

// reasonOf says why a handler is not served, or nothing.
func (a *assembly) reasonOf(name string) string {
	for _, b := range a.cfg.Broken {
		if b.Name == name {
			return b.Reason
		}
	}
	return ""
}
