package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/contrib/cluster/pkg/runtimeclass"
	"github.com/berth-cri/berth/internal/output"
)

func (w *classWork) migrate() error {
	o := runtimeclass.MigrateOptions{Handlers: map[string]string{}}
	for _, text := range w.flags.rename {
		from, to, ok := strings.Cut(text, "=")
		if !ok {
			return wrong(fmt.Errorf("--handler %q: write it as OLD=NEW", text))
		}
		if _, err := runtimeclass.ParseNames(to); err != nil {
			return wrong(fmt.Errorf("--handler %q: %w", text, err))
		}
		o.Handlers[from] = to
	}
	if len(w.args) > 1 && !w.flags.write {
		return wrong(errors.New("only one file can be printed; use --write to rewrite several in place"))
	}
	var all []runtimeclass.Migration
	var problems []error
	findings := 0
	for _, file := range w.args {
		if file == "-" && w.flags.write {
			return wrong(errors.New("standard input cannot be rewritten; remove --write"))
		}
		name, text, err := w.files.Text(file)
		if err != nil {
			return wrong(err)
		}
		m, err := runtimeclass.Migrate(name, text, o)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		for _, change := range m.Changes {
			w.note("%s", change)
		}
		if err := printFindings(w.ErrOut, m.Findings); err != nil {
			return err
		}
		findings += len(m.Findings)
		all = append(all, m)
	}
	switch {
	case len(problems) > 0:
		return wrong(errors.Join(problems...))
	case findings > 0:
		return found("nothing was written: the API server would reject it for %s", output.Count(findings, "reason", "reasons"))
	case w.flags.write:
		return replace(w.args, all)
	}
	_, err := w.Out.Write(all[0].Text)
	return err
}

// replace writes files that changed, all of them beside the old ones before the
// first takes its place.
func replace(files []string, all []runtimeclass.Migration) error {
	fresh := map[string]string{}
	defer func() {
		for temporary := range fresh {
			os.Remove(temporary)
		}
	}()
	for i, file := range files {
		if len(all[i].Changes) == 0 {
			continue
		}
		// A link stays one.
		path, err := filepath.EvalSymlinks(file)
		if err != nil {
			return err
		}
		temporary, err := beside(path, all[i].Text)
		if err != nil {
			return fmt.Errorf("nothing was written: %w", err)
		}
		fresh[temporary] = path
	}
	for temporary, path := range fresh {
		if err := os.Rename(temporary, path); err != nil {
			return err
		}
		delete(fresh, temporary)
	}
	return nil
}

// beside writes a text into the directory of a file, with its mode.
func beside(path string, text []byte) (temporary string, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Chmod(info.Mode().Perm()), f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
