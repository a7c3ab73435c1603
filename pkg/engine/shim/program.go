package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// programLink is in a supervisor's directory from before its first start: a
// symbolic link to the program that serves the directory, now and after any crash.
// A successor that is another build would do to running pods what nobody tested.
const programLink = "program"

// program returns what the supervisor of s runs. s.busy is taken.
func (m *Supervisors) program(s *supervisor) (string, error) {
	first, err := noteProgram(s.dir, m.config.Supervisor)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(first); errors.Is(err, os.ErrNotExist) {
		// Pods that nobody watches are worse off than with another build.
		m.config.Log.WithField("supervisor", s.key).WithField("program", first).WithField("instead", m.config.Supervisor).
			Error("Kept binary of supervisor is missing; starting the installed one as its successor")
		if err := os.Remove(filepath.Join(s.dir, programLink)); err != nil {
			return "", err
		}
		return noteProgram(s.dir, m.config.Supervisor)
	}
	return first, nil
}

// noteProgram records the program of a directory, unless it has one, and returns
// the one that it has.
func noteProgram(dir, program string) (string, error) {
	link := filepath.Join(dir, programLink)
	err := os.Symlink(program, link)
	if errors.Is(err, os.ErrExist) {
		program, err = os.Readlink(link)
	}
	if err != nil {
		return "", fmt.Errorf("record the supervisor's binary: %w", err)
	}
	return program, nil
}

// Programs are the programs that supervisors run, or that their successors will.
// It is errdefs.ErrFailedPrecondition when a directory does not say: it is only just
// coming into being.
func (m *Supervisors) Programs() ([]string, error) { return Programs(m.config.State) }

// Programs is Manager.Programs of who has that state directory.
func Programs(state string) ([]string, error) {
	keys, err := keysOf(state)
	if err != nil {
		return nil, err
	}
	var all []string
	for _, key := range keys {
		program, err := os.Readlink(filepath.Join(supervisorDir(state, key), programLink))
		if errors.Is(err, os.ErrNotExist) {
			if _, err := os.Stat(supervisorDir(state, key)); errors.Is(err, os.ErrNotExist) {
				continue // it left just now
			}
			return nil, fmt.Errorf("supervisor %s does not report its binary: %w", key, errdefs.ErrFailedPrecondition)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, program)
	}
	return all, nil
}
