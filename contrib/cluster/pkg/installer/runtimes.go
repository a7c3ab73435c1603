package installer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/nodefs"
)

func (r Runtime) file() string { return handlerFile(r.Handler) }

// home returns the directory of all versions of the runtime, dir that of this version. Older
// versions stay until the handler is removed, because pods may run on them.
func (r Runtime) home() string { return filepath.Join(runtimes, r.Handler) }
func (r Runtime) dir() string  { return filepath.Join(r.home(), r.Version) }

// dropIn returns the configuration of the handler.
func (r Runtime) dropIn() string {
	k := kinds[r.Kind]
	lines := []string{
		fmt.Sprintf("[runtimes.%q]", r.Handler),
		fmt.Sprintf("runtime_path = %q", filepath.Join(r.dir(), k.program)),
	}
	if k.config != "" {
		lines = append(lines, fmt.Sprintf("runtime_config_path = %q", filepath.Join(r.dir(), k.config)))
	}
	lines = append(lines, k.options...)
	if r.Options != "" {
		lines = append(lines, strings.TrimRight(r.Options, "\n"))
	}
	return signed(strings.Join(lines, "\n") + "\n")
}

// serveRuntimes installs runtimes one after the other, and removes unwanted ones.
func (r *run) serveRuntimes(ctx context.Context) error {
	var failed error
	for _, rt := range r.w.Runtimes {
		if err := r.serveRuntime(ctx, rt); err != nil {
			failed = errors.Join(failed, fmt.Errorf("runtime-%s: %w", rt.Handler, err))
		}
		if ctx.Err() != nil {
			return failed
		}
	}
	waits := r.removeRuntimes()
	if failed != nil {
		return errors.Join(failed, textOnly(waits)) // ErrPods beside a failure must not cause a retry
	}
	return waits
}

// serveRuntime copies a runtime to the directory of its version and adds its handler by a reload.
// If that fails, or the handler does not become ready, its former configuration is restored.
func (r *run) serveRuntime(ctx context.Context, rt Runtime) error {
	k := kinds[rt.Kind]
	log.G(ctx).WithField("handler", rt.Handler).WithField("path", rt.dir()).Info("Installing runtime")
	source, err := rt.source(r.root(), k)
	if err != nil {
		return err
	}
	if err := r.copyRuntime(source, rt, k); err != nil {
		return err
	}
	if err := r.relabel(ctx); err != nil {
		return err
	}
	r.at("installer.runtime.copied")
	files := maps.Clone(r.st.Healthy.Files)
	files[rt.file()] = rt.dropIn()
	err = r.reloadWith(ctx, files)
	if err == nil {
		err = eventually(ctx, r.patience, func() error { return r.serves(ctx, rt.Handler) })
	}
	if err != nil {
		log.G(ctx).WithField("handler", rt.Handler).Warn("Restoring the former runtime of the handler")
		return errors.Join(err, r.reloadWith(context.WithoutCancel(ctx), r.st.Healthy.Files))
	}
	r.at("installer.runtime.served")
	r.st.Healthy.Files = files
	return r.st.save()
}

func (r *run) reloadWith(ctx context.Context, files map[string]string) error {
	if err := r.writeFiles(r.st, files); err != nil {
		return err
	}
	_, err := r.reload(ctx)
	return err
}

func (r *run) copyRuntime(source string, rt Runtime, k kind) error {
	each := func() { r.at("installer.runtime.half") }
	if k.whole {
		edit := func(text string) string { return strings.ReplaceAll(text, k.built+"/", rt.dir()+"/") }
		return r.root().Copy(source, rt.dir(), edit, each)
	}
	if err := os.MkdirAll(r.root().Path(rt.dir()), 0o755); err != nil {
		return err
	}
	for _, name := range k.companions {
		from := filepath.Join(filepath.Dir(source), name)
		if _, err := os.Stat(from); err == nil {
			if err := r.root().Copy(from, filepath.Join(rt.dir(), name), nil, each); err != nil {
				return err
			}
		}
	}
	to := filepath.Join(rt.dir(), k.program)
	if r.root().ExistsAny(to) {
		return nil
	}
	return nodefs.CopyFile(source, r.root().Path(to))
}

// source returns the path to copy: a directory, or one program.
func (r Runtime) source(root nodefs.Root, k kind) (string, error) {
	path := root.Seen(r.Source)
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	switch {
	case !info.IsDir() && k.whole:
		return "", fmt.Errorf("%s is a file; a %s is a directory with %s", r.Source, r.Kind, k.program)
	case !info.IsDir() && filepath.Base(r.Source) != k.program:
		return "", fmt.Errorf("%s is not named %s", r.Source, k.program)
	case info.IsDir():
		program := root.Seen(filepath.Join(r.Source, k.program))
		if info, err = os.Stat(program); err != nil {
			return "", fmt.Errorf("%s has no %s: %w", r.Source, k.program, err)
		}
		if !k.whole {
			path = program
		}
	}
	if !k.whole && info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("%s is not executable", path)
	}
	return path, nil
}

// removeRuntimes removes the files of runtimes that no handler uses. It keeps runtimes that pods of
// the engine were created with.
func (r *run) removeRuntimes() error {
	all, err := enginePods(r.root())
	if err != nil {
		return err
	}
	var waits error
	for _, dir := range r.root().Matching([]string{runtimes + "/*"}) {
		handler := filepath.Base(dir)
		if strings.Contains(r.st.Healthy.Files[handlerFile(handler)], dir+"/") {
			continue
		}
		pods := slices.DeleteFunc(slices.Clone(all), func(p enginePod) bool {
			return p.handler != handler && !strings.HasPrefix(p.path, dir+"/")
		})
		if len(pods) > 0 {
			waits = errors.Join(waits, fmt.Errorf("the runtime of handler %s has %s; %w", handler, counted(pods), ErrPods))
			continue
		}
		log.L.WithField("handler", handler).Info("Removing runtime")
		if err := os.RemoveAll(r.root().Path(dir)); err != nil {
			return err
		}
	}
	os.Remove(r.root().Path(runtimes)) // fails unless the directory is empty
	return waits
}
