package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/output"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
)

// foreign is the stdio of a task that a foreign shim runs. supervisor.mu guards it; output is nil
// until read has succeeded.
type foreign struct {
	journal journal.Task
	output  *output.Output
	stdin   *os.File   // a write end, until CloseIO
	held    []*os.File // write ends of the outputs, until the task exited
}

// openForeign journals the stdio of a foreign shim's task and starts to read it.
func (s *supervisor) openForeign(j journal.Task) error {
	if err := journal.CheckID(j.ID); err != nil {
		return err
	}
	if err := journal.CheckPaths(j.Stdin, j.Stdout, j.Stderr, j.Options.LogDirectory, j.Options.LogPath); err != nil {
		return err
	}
	f := &foreign{journal: j}
	leave, err := s.enter(j.ID, func() { s.foreign[j.ID] = f })
	if err != nil {
		return err
	}
	// Write a copy: other calls may change f from here on.
	if err = journal.Write(filepath.Join(journal.TaskDir(s.dir, j.ID), journal.TaskFile), &j); err == nil {
		err = f.open(s)
	}
	if err != nil {
		leave()
	}
	return err
}

func (f *foreign) save(s *supervisor) error {
	return journal.Write(filepath.Join(journal.TaskDir(s.dir, f.journal.ID), journal.TaskFile), &f.journal)
}

// open starts to read the outputs. The supervisor's own write ends prevent an end of file before
// the shim has opened its ends.
func (f *foreign) open(s *supervisor) error {
	j := &f.journal
	// Open the log without s.mu: other calls must not wait for its disk.
	out, err := output.Open(f.context(s), &j.Options)
	if err != nil {
		return fmt.Errorf("open container log: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.foreign[j.ID] != f {
		out.Discard()
		return fmt.Errorf("the stdio of container %q was closed while it was being opened: %w", j.ID, context.Canceled)
	}
	return f.read(out)
}

func (f *foreign) context(s *supervisor) context.Context {
	return log.WithLogger(s.ctx, log.G(s.ctx).WithField("container", f.journal.ID))
}

// read connects the streams to out, or closes out on failure.
func (f *foreign) read(out *output.Output) (retErr error) {
	j := &f.journal
	sources, err := out.OpenSources(j.Stdout, j.Stderr)
	if err != nil {
		out.Discard()
		return err
	}
	defer func() {
		if retErr != nil {
			f.release()
			out.Discard(sources...)
		}
	}()
	if j.Terminal {
		for n := range sources {
			sources[n].Stream = out.Log.Terminal()
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
	if f.stdin, err = j.HoldStdin(); err != nil {
		return err
	}
	f.output = out
	f.output.Start(sources...)
	return nil
}

// release closes the supervisor's write ends; the streams end when the shim closes its own ends.
func (f *foreign) release() {
	f.releaseOutput()
	f.closeStdin()
}

func (f *foreign) closeStdin() {
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

// flushForeign waits until the log of an exited task is complete. It first closes the supervisor's
// write ends of the outputs, which were needed only until the shim had opened its own.
func (s *supervisor) flushForeign(ctx context.Context, id string) error {
	s.mu.Lock()
	f, ok := s.foreign[id]
	if !ok {
		s.mu.Unlock()
		return s.noTask(id)
	}
	f.releaseOutput()
	out := f.output
	s.mu.Unlock()
	if out != nil {
		out.Flush(ctx)
	}
	return nil
}

// closeForeign reads the streams to their end, for at most drainTimeout, and forgets the task.
func (s *supervisor) closeForeign(id string) error {
	s.mu.Lock()
	f, ok := s.foreign[id]
	if !ok {
		s.mu.Unlock()
		return nil
	}
	f.release()
	closed := &foreign{journal: f.journal, output: f.output}
	s.foreign[id] = closed // an open in progress fails then
	s.mu.Unlock()
	if closed.output != nil {
		closed.output.Drain(drainTimeout)
	}
	if err := os.RemoveAll(journal.TaskDir(s.dir, id)); err != nil {
		return err
	}
	s.forget(id)
	return nil
}

func (s *supervisor) takeOverForeign(j journal.Task) {
	f := &foreign{journal: j}
	s.foreign[j.ID] = f
	ctx := f.context(s)
	if err := f.read(output.Reopen(ctx, &j.Options)); err != nil {
		log.G(ctx).WithError(err).Error("Failed to resume reading container output")
	}
}

// takeForeignStdin journals whether stdin is closed when the input of the attached client ends. It
// returns the previous value.
func (s *supervisor) takeForeignStdin(id string, taken bool) (before bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.foreign[id]
	if !ok {
		return false, s.noTask(id)
	}
	before, f.journal.StdinTaken = f.journal.StdinTaken, taken
	return before, f.save(s)
}

// closeForeignStdin closes the supervisor's write end of a foreign task's stdin.
func (s *supervisor) closeForeignStdin(id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.foreign[id]
	if !ok {
		return s.noTask(id)
	}
	f.journal.StdinClosed = true
	if err := f.save(s); err != nil {
		return err
	}
	f.closeStdin()
	return nil
}
