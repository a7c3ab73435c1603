package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// broughtRuntime copies a runtime to a directory of its version and adds its handler, live.
// Older versions stay for the pods that run on them, until the handler is removed.
type broughtRuntime struct {
	root     nodefs.Root
	at       hook
	daemon   daemon
	patience time.Duration
	r        Runtime
}

// savedRuntime is what undo needs, and the drop-in that was last ready.
type savedRuntime struct {
	Files []nodefs.Original `json:"files"`
	Good  []byte            `json:"good,omitempty"`
}

func (b *broughtRuntime) name() string { return runtimeStep + b.r.Handler }
func (*broughtRuntime) alone() bool    { return true }

func (b *broughtRuntime) input() string {
	text, err := json.Marshal(b.r)
	return nodefs.Digest(fmt.Appendf(text, "%v", err))
}

func (r Runtime) file() string { return handlerFile(r.Handler) }

// home is where all versions of the runtime are, dir where this one is.
func (r Runtime) home() string { return filepath.Join(home, "runtimes", r.Handler) }
func (r Runtime) dir() string  { return filepath.Join(r.home(), r.Version) }

// dropIn is the table of the handler.
func (r Runtime) dropIn() []byte {
	k := kinds[r.Kind]
	lines := []string{
		"# Written by berth-installer.", fmt.Sprintf("[runtimes.%q]", r.Handler),
		fmt.Sprintf("runtime_path = %q", filepath.Join(r.dir(), k.program)),
	}
	if k.config != "" {
		lines = append(lines, fmt.Sprintf("runtime_config_path = %q", filepath.Join(r.dir(), k.config)))
	}
	lines = append(lines, k.options...)
	if r.Options != "" {
		lines = append(lines, strings.TrimRight(r.Options, "\n"))
	}
	return []byte(strings.Join(lines, "\n") + "\n")
}

func (b *broughtRuntime) prepare(_ context.Context, before []byte) ([]byte, error) {
	k := kinds[b.r.Kind]
	if _, err := b.source(k); err != nil {
		return nil, err
	}
	var saved savedRuntime
	if before != nil {
		if err := json.Unmarshal(before, &saved); err != nil {
			return nil, err
		}
	}
	var err error
	if saved.Files, err = (nodefs.Set{Content: map[string][]byte{b.r.file(): b.r.dropIn()}}).Prepare(b.root, saved.Files); err != nil {
		return nil, err
	}
	return json.Marshal(saved)
}

// settled implements settling.
func (b *broughtRuntime) settled(text []byte) ([]byte, error) {
	var saved savedRuntime
	if err := json.Unmarshal(text, &saved); err != nil {
		return nil, err
	}
	saved.Good = b.r.dropIn()
	return json.Marshal(saved)
}

// source is what is copied: a directory, or one program.
func (b *broughtRuntime) source(k kind) (string, error) {
	path := b.root.Seen(b.r.Source)
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("runtime %q: %w", b.r.Handler, err)
	}
	switch {
	case !info.IsDir() && k.whole:
		return "", fmt.Errorf("runtime %q: %s is a file; a %s is a directory with %s", b.r.Handler, b.r.Source, b.r.Kind, k.program)
	case !info.IsDir() && filepath.Base(b.r.Source) != k.program:
		return "", fmt.Errorf("runtime %q: %s is not called %s", b.r.Handler, b.r.Source, k.program)
	case info.IsDir():
		program := b.root.Seen(filepath.Join(b.r.Source, k.program))
		if info, err = os.Stat(program); err != nil {
			return "", fmt.Errorf("runtime %q: %s has no %s: %w", b.r.Handler, b.r.Source, k.program, err)
		}
		if !k.whole {
			path = program
		}
	}
	if !k.whole && info.Mode()&0o111 == 0 {
		return "", fmt.Errorf("runtime %q: %s is not executable", b.r.Handler, path)
	}
	return path, nil
}

func (b *broughtRuntime) do(ctx context.Context, text []byte) error {
	var saved savedRuntime
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	k := kinds[b.r.Kind]
	source, err := b.source(k)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(b.root.Path(b.r.home()), 0o755); err != nil {
		return err
	}
	// What lacks its program serves no pod, and is brought anew.
	if !b.root.ExistsAny(filepath.Join(b.r.dir(), k.program)) {
		if err := os.RemoveAll(b.root.Path(b.r.dir())); err != nil {
			return err
		}
	}
	var change func(string, []byte) []byte
	if k.built != "" {
		change = func(_ string, text []byte) []byte { return relocated(text, k.built, b.r.dir()) }
	}
	if err := b.root.Bring(source, k.program, k.companions, b.r.dir(), change, func() { b.at("installer.runtime.half") }); err != nil {
		return err
	}
	if err := b.root.Replace(saved.Files[0], b.r.dropIn()); err != nil {
		return err
	}
	b.at("installer.runtime.written")
	err = b.daemon.reload(ctx)
	if err == nil {
		err = eventually(ctx, b.patience, func() error { return b.ready(ctx) })
	}
	if err != nil && saved.Good != nil && ctx.Err() == nil {
		return errors.Join(err, b.back(ctx, saved.Good))
	}
	return err
}

// back puts the drop-in back that was last ready. Its files are there still.
func (b *broughtRuntime) back(ctx context.Context, dropIn []byte) error {
	if err := b.root.Put(b.r.file(), dropIn, 0o644); err != nil {
		return err
	}
	return b.daemon.reload(ctx)
}

// relocated has a text name files where they are, and not where they were built to be.
func relocated(text []byte, from, to string) []byte {
	return bytes.ReplaceAll(text, []byte(from+"/"), []byte(to+"/"))
}

func (b *broughtRuntime) ready(ctx context.Context) error {
	all, err := b.daemon.handlers(ctx)
	if err != nil {
		return err
	}
	for _, h := range all {
		if h.Name == b.r.Handler {
			if h.State == "STATE_NOT_READY" {
				return fmt.Errorf("handler %s is not ready: %s", h.Name, h.Reason)
			}
			return nil
		}
	}
	return fmt.Errorf("berth does not have the handler %s", b.r.Handler)
}

// holds implements lasting.
func (b *broughtRuntime) holds(ctx context.Context, _ []byte) error {
	return eventually(ctx, b.patience, func() error { return b.ready(ctx) })
}

func (b *broughtRuntime) undo(ctx context.Context, text []byte) error {
	var saved savedRuntime
	if err := json.Unmarshal(text, &saved); err != nil {
		return err
	}
	files := saved.Files
	if text, err := os.ReadFile(b.root.Path(b.r.file())); err == nil && !bytes.Contains(text, []byte(b.r.home()+"/")) {
		// It does not lead to the runtime any more: an earlier run has restored it, and it may be
		// of newer values by now.
		files = slices.DeleteFunc(slices.Clone(files), func(o nodefs.Original) bool { return !o.Absent })
	}
	if err := b.root.RestoreAll(files); err != nil {
		return err
	}
	if b.daemon.active(ctx) {
		if err := b.daemon.reload(ctx); err != nil {
			return err
		}
	}
	if err := b.empty(); err != nil {
		return err
	}
	if err := os.RemoveAll(b.root.Path(b.r.home())); err != nil {
		return err
	}
	os.Remove(b.root.Path(filepath.Dir(b.r.home()))) // others may be there
	return nil
}

// empty says whether no pod needs the runtime's files. The handler may be gone by now, drain,
// or lead to the other daemon: pods of the engine keep what they were created under.
func (b *broughtRuntime) empty() error {
	all, err := enginePods(b.root)
	if err != nil {
		return err
	}
	pods := slices.DeleteFunc(all, func(p enginePod) bool {
		return p.handler != b.r.Handler && !strings.HasPrefix(p.path, b.r.home()+"/")
	})
	if len(pods) == 0 {
		return nil
	}
	return fmt.Errorf("the runtime of handler %s has %s; %w", b.r.Handler, counted(pods), ErrPods)
}
