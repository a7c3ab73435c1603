package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/shims"
	"github.com/berth-cri/berth/integration/shims/standin"
)

// state is the record of a pod for the delete action. Kata's records are in /run/vc/sbs
// (virtcontainers/persist/fs).
type state struct {
	Sandbox    string
	Machine    int    // pid, 0 before it runs
	Cgroup     string // of the machine
	Containers map[string]bool
	Settings   shims.Kata
}

func statePath(sandbox string) string { return filepath.Join(shims.KataState, sandbox) }

func loadState(sandbox string) (*state, error) {
	s := &state{Sandbox: sandbox, Containers: map[string]bool{}}
	text, err := os.ReadFile(statePath(sandbox))
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	return s, json.Unmarshal(text, s)
}

func (s *state) save() error {
	text, err := json.Marshal(s)
	if err == nil {
		err = os.MkdirAll(shims.KataState, 0o700)
	}
	if err == nil {
		err = os.WriteFile(statePath(s.Sandbox), text, 0o600)
	}
	return err
}

// end stops the machine and removes the pod's record.
func (s *state) end() error {
	if s.Machine > 0 {
		if err := unix.Kill(s.Machine, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
		awaitEnd(s.Machine)
		removeCgroup(s.Cgroup)
	}
	if err := os.Remove(statePath(s.Sandbox)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// sandboxOf returns the pod of a task by its bundle, which may not have a spec yet.
func sandboxOf(bundle, id string) (string, error) {
	spec, err := standin.ReadSpec(bundle)
	if errors.Is(err, fs.ErrNotExist) {
		return id, nil
	}
	if err != nil {
		return "", err
	}
	if s := spec.Annotations[standin.SandboxAnnotation]; s != "" {
		return s, nil
	}
	return id, nil
}
