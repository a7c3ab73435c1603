package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/oomlog"
)

// Supervisor holds the tasks of one process.
type Supervisor struct {
	ctx         context.Context // carries the logger; ends never
	dir         string
	version     string
	processes   *processes
	hierarchies []hierarchy
	kernelLog   *oomlog.Log
	digest      func() (string, error)
	shutdown    func() // ends the process

	// mu is taken before any task.mu.
	mu      sync.Mutex
	tasks   map[string]*task
	foreign map[string]*foreign
	closing bool // Shutdown was accepted
}

func newSupervisor(ctx context.Context, dir, version string, shutdown func()) (*Supervisor, error) {
	if err := os.MkdirAll(filepath.Join(dir, tasksDir), 0o700); err != nil {
		return nil, err
	}
	p, err := newProcesses()
	if err != nil {
		return nil, err
	}
	h, err := hierarchies()
	if err != nil {
		return nil, err
	}
	return &Supervisor{
		ctx: ctx, dir: dir, version: version, processes: p, hierarchies: h, kernelLog: oomlog.New(),
		digest: sync.OnceValues(executableDigest), shutdown: shutdown,
		tasks: map[string]*task{}, foreign: map[string]*foreign{},
	}, nil
}

// validID keeps ids to what is a file name and no option of a runtime. The length is
// not part of it: 200 repetitions would cost every supervisor 200 KB.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

func checkID(id string) error {
	if len(id) > 200 || !validID.MatchString(id) {
		return fmt.Errorf("%.80q is not a valid ID: %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}

// check refuses what cannot work, before anything is done.
func (t *Task) check() error {
	if err := checkID(t.ID); err != nil {
		return err
	}
	for _, p := range []struct{ what, path string }{
		{"bundle", t.Bundle}, {"runtime", t.Options.Runtime}, {"root", t.Options.Root},
	} {
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s %q is not an absolute path: %w", p.what, p.path, errdefs.ErrInvalidArgument)
		}
	}
	return checkPaths(t.Stdin, t.Stdout, t.Stderr, t.Options.LogDirectory, t.Options.LogPath)
}

// checkPaths refuses paths that are neither empty nor absolute.
func checkPaths(paths ...string) error {
	for _, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%q is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// create journals a task; the runtime hears of it at its start.
func (s *Supervisor) create(j Task, rootfs []mount.Mount) (retErr error) {
	if err := j.check(); err != nil {
		return err
	}
	if info, err := os.Stat(j.Bundle); err != nil || !info.IsDir() {
		return fmt.Errorf("bundle %s is not a directory: %w", j.Bundle, errdefs.ErrInvalidArgument)
	}
	t := newTask(s, j)
	if err := s.enter(j.ID, func() { s.tasks[j.ID] = t }); err != nil {
		return err
	}
	defer func() {
		if retErr != nil {
			os.RemoveAll(t.dir)
			s.forget(j.ID)
		}
	}()
	// What a task of this id left that ended before it was journaled.
	if err := os.RemoveAll(t.dir); err != nil {
		return err
	}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return err
	}
	if len(rootfs) > 0 {
		target := filepath.Join(j.Bundle, rootfsDir)
		if err := os.Mkdir(target, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if err := mount.All(rootfs, target); err != nil {
			return fmt.Errorf("mount the root filesystem: %w", err)
		}
		t.journal.MountedRootfs = true
		defer func() {
			if retErr != nil {
				_ = mount.UnmountAll(target, 0)
			}
		}()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.save()
}

// enter makes an id known, unless it is or the process is about to end.
func (s *Supervisor) enter(id string, add func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		return fmt.Errorf("this supervisor is shutting down: %w", errdefs.ErrUnavailable)
	}
	_, isTask := s.tasks[id]
	_, isForeign := s.foreign[id]
	if isTask || isForeign {
		return fmt.Errorf("container %q: %w", id, errdefs.ErrAlreadyExists)
	}
	add()
	return nil
}

func (s *Supervisor) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
	delete(s.foreign, id)
}

func (s *Supervisor) task(id string) (*task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[id]
	if !ok {
		return nil, s.noTask(id)
	}
	return t, nil
}

// outputOf returns the output of a task, whoever runs it, and its stdin.
func (s *Supervisor) outputOf(id string) (*output, *os.File, error) {
	noOutput := fmt.Errorf("container %q has no output: %w", id, errdefs.ErrFailedPrecondition)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.foreign[id]; ok {
		if f.output == nil {
			return nil, nil, noOutput
		}
		return f.output, f.stdin, nil
	}
	t, ok := s.tasks[id]
	if !ok {
		return nil, nil, s.noTask(id)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.output == nil {
		return nil, nil, noOutput
	}
	if t.first.master != nil {
		return t.output, t.first.master, nil
	}
	return t.output, t.first.stdin, nil
}

// all returns every task, in the order of their ids.
func (s *Supervisor) all() []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.tasks), func(a, b *task) int { return strings.Compare(a.id, b.id) })
}

// close begins the end of the process, which only happens to one that has no
// tasks unless it must end now.
func (s *Supervisor) close(now bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.tasks) + len(s.foreign); n > 0 && !now {
		return fmt.Errorf("%d tasks are left: %w", n, errdefs.ErrFailedPrecondition)
	}
	s.closing = true
	return nil
}
