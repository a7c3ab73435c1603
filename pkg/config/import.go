package config

import (
	"bytes"
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/pelletier/go-toml/v2"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/imports"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
	"github.com/berth-cri/berth/pkg/handler"
)

// imported adds the handlers of other daemons' files. Their mistakes are never fatal: these files
// come from installers that do not support berth, and the daemon must not depend on them. A handler
// with a mistake is Broken, so that no pod gets another one of that name.
func (a *assembly) imported(docs []*document) {
	own := a.ownHandlers(docs)
	a.foreignHandlers(imports.CRIO, a.cfg.Import.CRIO, own)
	a.foreignHandlers(imports.Containerd, a.cfg.Import.Containerd, own)
	a.cfg.Problems = a.cfg.Problems.Sorted()
	imports.SortNotes(a.cfg.ImportNotes)
}

// ownHandlers returns the origins of handlers in berth's own files, even if they cannot be served.
func (a *assembly) ownHandlers(docs []*document) map[string]string {
	own := map[string]string{}
	for _, d := range docs {
		for _, name := range d.handlers {
			own[name] = cmp.Or(d.Origins[tomlfile.Under("runtimes", name)], Origin{File: d.File}).String()
		}
	}
	return own
}

// foreignHandlers translates and checks files of one kind. A handler with a name in use is reported
// and skipped.
func (a *assembly) foreignHandlers(kind imports.Kind, paths []string, own map[string]string) {
	files := readForeign(kind, paths)
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

// foreignMistakes reports a file with mistakes, and adds its handlers, found by the headers of its
// tables, as broken.
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

// Translation is the result of translating other daemons' files.
type Translation struct {
	// DropIn is a drop-in with the handlers that could be translated.
	DropIn []byte
	// Notes are the settings that the drop-in omits or changes.
	Notes []ImportNote
	// Problems are mistakes in the files, and missing dependencies on this machine.
	Problems Problems
}

// Translate reads files and directories of CRI-O and containerd, and makes a drop-in of their
// handlers. It recognizes the daemon by a file's tables.
func Translate(paths []string, o Options) (*Translation, error) {
	t := &Translation{}
	all := readForeign(imports.CRIO, paths)
	t.Notes = append(t.Notes, all.notes...)
	byKind := map[imports.Kind]*foreignFiles{imports.CRIO: {}, imports.Containerd: {}}
	for _, d := range all.docs {
		kind, known := imports.KindOf(d.Values)
		switch {
		case filepath.Ext(d.File) == ".json", !known && len(d.Problems) == 0:
			t.Notes = append(t.Notes, ImportNote{Origin: Origin{File: d.File}, Why: "has no CRI-O or containerd tables (for registries.conf and policy.json see docs/migration.md)"})
		case len(d.Problems) > 0:
			t.Problems = append(t.Problems, d.Problems...)
		default:
			byKind[kind].docs = append(byKind[kind].docs, d)
		}
	}
	own := map[string]string{}
	for _, kind := range []imports.Kind{imports.CRIO, imports.Containerd} {
		if err := t.add(kind, byKind[kind], o, own); err != nil {
			return nil, err
		}
	}
	t.Problems = t.Problems.Sorted()
	imports.SortNotes(t.Notes)
	return t, nil
}

func (t *Translation) add(kind imports.Kind, files *foreignFiles, o Options, own map[string]string) error {
	handlers, notes := files.translate(kind, o.searchPath(), own)
	t.Notes = append(t.Notes, notes...)
	for _, h := range handlers {
		def, problems := checkForeign(h, o, Default())
		if len(problems) == 0 {
			c := check{decoder: newDecoder(foreignDocument(h), nil, nil), handler: h.Name, key: tomlfile.Under("runtimes", h.Name)}
			for _, l := range hostfiles.Lacks(def) {
				c.lacking(l.Key, l.Message)
			}
			problems = c.Problems
		}
		t.Problems = append(t.Problems, problems...)
		if err := t.write(h); err != nil {
			return err
		}
	}
	return nil
}

// checkForeign resolves a translated handler. The Definition is complete only without problems.
func checkForeign(h imports.Handler, o Options, base *Config) (*handler.Definition, Problems) {
	d := newDecoder(foreignDocument(h), o.SearchPath, base.snapshotterNames())
	if h.Unfound != "" {
		d.unfound = fmt.Sprintf("%s was not found in %s; install it", h.Unfound, shortList(o.searchPath()))
	}
	def := d.runtime(h.Name, h.Values, base.Engine)
	return def, d.Problems.Sorted()
}

func (t *Translation) write(h imports.Handler) error {
	table := map[string]any{"runtimes": map[string]any{h.Name: h.Values}}
	body, err := toml.Marshal(table)
	if err != nil {
		return fmt.Errorf("write handler %q: %w", h.Name, err)
	}
	if len(t.DropIn) > 0 {
		t.DropIn = append(t.DropIn, '\n')
	}
	t.DropIn = fmt.Appendf(t.DropIn, "# from %s\n", h.At)
	if h.Unfound != "" {
		t.DropIn = fmt.Appendf(t.DropIn, "# runtime_path is missing: %s was not found\n", h.Unfound)
	}
	t.DropIn = append(t.DropIn, bytes.TrimPrefix(body, []byte("[runtimes]\n"))...)
	return nil
}
