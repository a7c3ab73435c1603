package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/oomlog"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
)

// supervisor is the state of this process: its tasks, and what they share.
type supervisor struct {
	ctx         context.Context // carries the logger; never ends
	dir         string
	version     string
	processes   *processes.Set
	hierarchies []cgroups.Hierarchy
	kernelLog   *oomlog.Log
	digest      func() (string, error)
	shutdown    func() // ends the process

	// mu is taken before any task.mu.
	mu      sync.Mutex
	tasks   map[string]*task
	foreign map[string]*foreign
	closing bool // Shutdown was accepted
}

func newSupervisor(ctx context.Context, dir, version string, shutdown func()) (*supervisor, error) {
	if err := os.MkdirAll(filepath.Join(dir, journal.TasksDir), 0o700); err != nil {
		return nil, err
	}
	h, err := cgroups.Hierarchies()
	if err != nil {
		return nil, err
	}
	p, err := processes.New()
	if err != nil {
		return nil, err
	}
	return &supervisor{
		ctx: ctx, dir: dir, version: version, processes: p, hierarchies: h, kernelLog: oomlog.New(),
		digest: sync.OnceValues(executableDigest), shutdown: shutdown,
		tasks: map[string]*task{}, foreign: map[string]*foreign{},
	}, nil
}

// create journals a task and mounts its root filesystem; the runtime is called at Start.
func (s *supervisor) create(j journal.Task, rootfs []mount.Mount) (retErr error) {
	if err := j.Check(); err != nil {
		return err
	}
	if info, err := os.Stat(j.Bundle); err != nil || !info.IsDir() {
		return fmt.Errorf("bundle %s is not a directory: %w", j.Bundle, errdefs.ErrInvalidArgument)
	}
	t := newTask(s, j)
	leave, err := s.enter(j.ID, func() { s.tasks[j.ID] = t })
	if err != nil {
		return err
	}
	defer func() {
		if retErr != nil {
			leave()
		}
	}()
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

// enter registers a new id and creates its directory; leave removes both. enter fails once Shutdown
// was accepted.
func (s *supervisor) enter(id string, add func()) (leave func(), err error) {
	if err := s.register(id, add); err != nil {
		return nil, err
	}
	dir := journal.TaskDir(s.dir, id)
	leave = func() {
		os.RemoveAll(dir)
		s.forget(id)
	}
	// A supervisor that was killed during a Create may have left the directory.
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

func (s *supervisor) register(id string, add func()) error {
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

func (s *supervisor) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tasks, id)
	delete(s.foreign, id)
}

func (s *supervisor) task(id string) (*task, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok := s.tasks[id]
	if !ok {
		return nil, s.noTask(id)
	}
	return t, nil
}

// outputOf returns the output and the stdin of a task, including the tasks of foreign shims.
func (s *supervisor) outputOf(id string) (*output.Output, *os.File, error) {
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

// all returns every task, sorted by id.
func (s *supervisor) all() []*task {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.tasks), func(a, b *task) int { return strings.Compare(a.id, b.id) })
}

// close prepares the exit of this process. It fails while there are tasks, unless now is set.
func (s *supervisor) close(now bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.tasks) + len(s.foreign); n > 0 && !now {
		return fmt.Errorf("the number of tasks left is %d: %w", n, errdefs.ErrFailedPrecondition)
	}
	s.closing = true
	return nil
}

func (s *supervisor) noTask(id string) error {
	return fmt.Errorf("container %q is unknown to this supervisor: %w", id, errdefs.ErrNotFound)
}

// decode decodes a message; it ignores the prefix of the type URL.
func decode(what string, a *anypb.Any, into proto.Message) error {
	if want := into.ProtoReflect().Descriptor().FullName(); a.MessageName() != want {
		return fmt.Errorf("%s must be of type %s, not %q: %w", what, want, a.GetTypeUrl(), errdefs.ErrInvalidArgument)
	}
	if err := proto.Unmarshal(a.GetValue(), into); err != nil {
		return fmt.Errorf("decode %s: %w: %w", what, err, errdefs.ErrInvalidArgument)
	}
	return nil
}

// executableDigest returns the SHA-256 of the running program, even after its file was replaced.
func executableDigest() (string, error) {
	f, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}
