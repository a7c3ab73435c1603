package config

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
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
	imports.SortNotes(a.cfg.ImportNotes)
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
	for _, d := range files.parsed() {
		a.cfg.Sources = append(a.cfg.Sources, d.File)
	}
	handlers, notes := files.translate(kind, a.options.searchPath(), own)
	a.cfg.ImportNotes = append(a.cfg.ImportNotes, notes...)
	for _, h := range handlers {
		a.foreignHandler(h)
	}
	for _, d := range files.docs {
		a.foreignMistakes(d, own)
	}
}

func (a *assembly) foreignHandler(h imports.Handler) {
	a.cfg.elsewhere[h.Name] = true
	def, problems := checkForeign(h, a.options, a.cfg)
	if len(problems) == 0 {
		a.add(foreignDocument(h), def)
		return
	}
	a.cfg.Problems = append(a.cfg.Problems, problems...)
	a.cfg.Broken = append(a.cfg.Broken, Broken{Name: h.Name, Origin: h.At.String(), Reason: clip(problems[0].Error())})
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
