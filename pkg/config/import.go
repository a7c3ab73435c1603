package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// imported adds the handlers of other daemons' files. None of their mistakes is
// fatal: these files are written by installers
// that know nothing of berth, and the daemon must not depend on them. A handler
// with a mistake is Broken, so that no pod gets another one of that name.
func (a *assembly) imported(docs []*document) {
	own := a.ownHandlers(docs)
	for _, source := range []struct {
		kind  imports.Kind
		key   string
		paths []string
	}{
		{imports.CRIO, "import.crio", a.cfg.Import.CRIO},
		{imports.Containerd, "import.containerd", a.cfg.Import.Containerd},
	} {
		if len(source.paths) == 0 {
			continue
		}
		a.foreignHandlers(source.kind, readForeign(source.kind, source.paths), own)
	}
	a.cfg.Problems = a.cfg.Problems.Sorted()
	slices.SortStableFunc(a.cfg.ImportNotes, byPlace)
	slices.SortFunc(a.cfg.Broken, func(x, y Broken) int { return strings.Compare(x.Name, y.Name) })
}

// ownHandlers tells where berth's own handlers are, also those that cannot be
// served.
func (a *assembly) ownHandlers(docs []*document) map[string]string {
	own := map[string]string{}
	for _, d := range docs {
		for _, name := range d.handlers {
			own[name] = cmp.Or(d.Origins[tomlfile.Under("runtimes", name)], Origin{File: d.File}).String()
		}
	}
	return own
}

// foreignHandlers translates and checks files of one kind. A name that is there
// already is reported and left alone.
func (a *assembly) foreignHandlers(kind imports.Kind, files *foreignFiles, own map[string]string) {
	a.cfg.Sources = append(a.cfg.Sources, files.names()...)
	a.cfg.ImportNotes = append(a.cfg.ImportNotes, files.notes...)
	result := imports.Translate(kind, files.parsed(), findIn(a.options.searchPath()))
	for _, n := range result.Notes {
		a.cfg.ImportNotes = append(a.cfg.ImportNotes, files.note(n))
	}
	for _, h := range result.Handlers {
		if reason := unservable(h.Name, own); reason != "" {
			a.cfg.ImportNotes = append(a.cfg.ImportNotes, files.note(imports.Note{Place: h.At, Handler: h.Name, Why: reason}))
			continue
		}
		own[h.Name] = files.origin(h.At).String()
		a.foreignHandler(h, files)
	}
	for _, d := range files.docs {
		a.foreignMistakes(d, own)
	}
}

// unservable says why an imported handler is not taken over, or nothing.
func unservable(name string, own map[string]string) string {
	if first, taken := own[name]; taken {
		return fmt.Sprintf("is not imported: handler %q is already configured at %s", name, first)
	}
	if handler.ValidName(name) != nil {
		return fmt.Sprintf("is not imported: handler name %q is not a DNS-1123 label, so a RuntimeClass cannot use it", name)
	}
	return ""
}

func (a *assembly) foreignHandler(h imports.Handler, files *foreignFiles) {
	a.cfg.elsewhere[h.Name] = true
	def, problems := checkForeign(h, files, a.options, a.cfg)
	if len(problems) == 0 {
		a.add(files.document(h), def)
		return
	}
	a.cfg.Problems = append(a.cfg.Problems, problems...)
	a.cfg.Broken = append(a.cfg.Broken, Broken{Name: h.Name, Origin: files.origin(h.At).String(), Reason: clip(problems[0].Error())})
}

// foreignMistakes are about files that could not be read. What they were to
// bring is known by the headers of its tables.
func (a *assembly) foreignMistakes(d *document, own map[string]string) {
	if len(d.Problems) == 0 {
		return
	}
	a.cfg.Problems = append(a.cfg.Problems, d.Problems...)
	for _, name := range d.handlers {
		if _, taken := own[name]; taken {
			continue
		}
		own[name] = d.File
		a.cfg.elsewhere[name] = true
		a.cfg.Broken = append(a.cfg.Broken, Broken{Name: name, Origin: d.File, Reason: clip(d.Problems.Sorted()[0].Error())})
	}
}

// findIn looks for programs as containerd and CRI-O do by PATH.
func findIn(dirs []string) imports.Find {
	return func(program string) string { return hostfiles.FindIn(dirs, program) }
}
