package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// foreign is the stdio of a task that a foreign shim runs. Supervisor.mu guards
// it; output is nil until it is open.
type foreign struct {
	journal Task
	output  *output
	stdin   *os.File   // a write end, until CloseIO
	held    []*os.File // write ends of the outputs, until the shim is done
}

// openForeign journals and begins to read the stdio of a task that is not run
// here.
func (s *Supervisor) openForeign(j Task) (retErr error) {
	if err := checkID(j.ID); err != nil {
		return err
	}
	if err := checkPaths(j.Stdin, j.Stdout, j.Stderr, j.Options.LogDirectory, j.Options.LogPath); err != nil {
		return err
	}
	f := &foreign{journal: j}
	if err := s.enter(j.ID, func() { s.foreign[j.ID] = f }); err != nil {
		return err
	}
	dir := taskDir(s.dir, j.ID)
	defer func() {
		if retErr != nil {
			os.RemoveAll(dir)
			s.forget(j.ID)
		}
	}()
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(dir, taskFile), &j); err != nil {
		return err
	}
	return f.open(s)
}

// open begins to read the outputs. Our own write ends keep the streams from
// ending before the shim has opened its ends.
func (f *foreign) open(s *Supervisor) error {
	j := &f.journal
	// Others do not wait for the disk of the logs.
	output, err := openOutput(f.context(s), &j.Options)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.foreign[j.ID] != f {
		output.discard()
		return fmt.Errorf("its stdio was closed meanwhile: %w", context.Canceled)
	}
	return f.read(output)
}

func (f *foreign) context(s *Supervisor) context.Context {
	return log.WithLogger(s.ctx, log.G(s.ctx).WithField("container", f.journal.ID))
}

// read lets the streams flow into output, and closes it if that cannot be.
func (f *foreign) read(output *output) (retErr error) {
	j := &f.journal
	sources, err := output.openSources(j.Stdout, j.Stderr)
	if err != nil {
		output.discard()
		return err
	}
	defer func() {
		if retErr != nil {
			f.release()
			output.discard(sources...)
		}
	}()
	if j.Terminal {
		for n := range sources {
			sources[n].stream = output.log.Terminal()
		}
	}
	for _, path := range []string{j.Stdout, j.Stderr} {
		if path == "" {
			continue
		}
		held, err := stdio.OpenWriter(path)
		if err != nil {
			return err
		}
		f.held = append(f.held, held)
	}
	if f.stdin, err = j.holdStdin(); err != nil {
		return err
	}
	f.output = output
	f.output.start(sources...)
	return nil
}

// release gives up what we hold of the streams; they end with the shim's ends.
func (f *foreign) release() {
	f.releaseOutput()
	if f.stdin != nil {
		f.stdin.Close()
		f.stdin = nil
	}
}

func (f *foreign) releaseOutput() {
	for _, h := range f.held {
		h.Close()
	}
	f.held = nil
}

// flushForeign waits for the log of an ended task to be whole. That the shim has
// opened its ends of the streams need not be waited for any more.
func (s *Supervisor) flushForeign(ctx context.Context, id string) error {
	s.mu.Lock()
	f, ok := s.foreign[id]
	if !ok {
		s.mu.Unlock()
		return s.noTask(id)
	}
	f.releaseOutput()
	output := f.output
	s.mu.Unlock()
	if output != nil {
		output.flush(ctx)
	}
	return nil
}

// closeForeign reads the streams to their end, with a bound, and forgets them.
func (s *Supervisor) closeForeign(id string) error {
	s.mu.Lock()
	f, ok := s.foreign[id]
	if !ok {
		s.mu.Unlock()
		return nil
	}
	f.release()
	s.mu.Unlock()
	if f.output != nil {
		f.output.drain(drainTimeout)
	}
	if err := os.RemoveAll(taskDir(s.dir, id)); err != nil {
		return err
	}
	s.forget(id)
	return nil
}

func (s *Supervisor) takeOverForeign(j Task) {
	f := &foreign{journal: j}
	s.foreign[j.ID] = f
	ctx := f.context(s)
	if err := f.read(reopenOutput(ctx, &j.Options)); err != nil {
		log.G(ctx).WithError(err).Error("Failed to resume reading container output")
	}
}

// takeForeignStdin journals whether somebody is attached with whom stdin ends,
// and returns what was journaled before.
func (s *Supervisor) takeForeignStdin(id string, taken bool) (before bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.foreign[id]
	if !ok {
		return false, s.noTask(id)
	}
	before, f.journal.StdinTaken = f.journal.StdinTaken, taken
	return before, writeJSON(filepath.Join(taskDir(s.dir, id), taskFile), &f.journal)
}

// closeForeignStdin ends our part of holding a foreign task's stdin open.
func (s *Supervisor) closeForeignStdin(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.foreign[id]
	if !ok {
		return s.noTask(id)
	}
	f.journal.StdinClosed = true
	if err := writeJSON(filepath.Join(taskDir(s.dir, id), taskFile), &f.journal); err != nil {
		return err
	}
	if f.stdin != nil {
		f.stdin.Close()
		f.stdin = nil
	}
	return nil
}
