package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// programLink is a symbolic link in a supervisor's directory, created before its first start. It
// names the binary that serves the directory, also after a crash: a successor of another build
// would manage running pods in ways that no test covered.
const programLink = "program"

// program returns the binary that the supervisor of s runs. s.busy is taken.
func (m *Supervisors) program(s *supervisor) (string, error) {
	first, err := recordProgram(s.dir, m.config.Supervisor)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(first); errors.Is(err, os.ErrNotExist) {
		// A supervisor of another build is better for the pods than no supervisor.
		m.config.Log.WithField("supervisor", s.key).WithField("program", first).WithField("instead", m.config.Supervisor).
			Error("Kept binary of supervisor is missing; starting the installed one as its successor")
		if err := os.Remove(filepath.Join(s.dir, programLink)); err != nil {
			return "", err
		}
		return recordProgram(s.dir, m.config.Supervisor)
	}
	return first, nil
}

// recordProgram records a directory's binary unless one is recorded, and returns the recorded one.
func recordProgram(dir, program string) (string, error) {
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

// Programs returns the binaries of the supervisors below a state directory, and of their
// successors. It fails with errdefs.ErrFailedPrecondition if a supervisor is still being created,
// so that its directory names no binary yet.
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
				continue // it has just exited
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

// inheritedEnv are the daemon's variables that supervisors, shims and runtimes may need. Other
// variables may hold secrets, such as a proxy's password. NOTIFY_SOCKET must not be here: runc
// would pass it to its container. Variables that tune Go programs must not be here either: they are
// meant for the daemon, and most runtimes are Go programs, too.
var inheritedEnv = []string{"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "DBUS_SYSTEM_BUS_ADDRESS"}

// kataConfig names a configuration file. Kata's shim gets one only by this variable or by options,
// which a handler need not have.
const kataConfig = "KATA_CONF_FILE"

// Environment is the part of this process's environment that supervisors and runtimes get.
func Environment() []string { return environment(os.Environ()) }

// environment selects variables for programs that run pods: inheritedEnv, LC_*, and those in more.
func environment(environ []string, more ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return !slices.Contains(inheritedEnv, name) && !strings.HasPrefix(name, "LC_") && !slices.Contains(more, name)
	})
}

const maxOOMScore = 1000

// preferOOMKill makes the OOM killer prefer a process to the daemon, by one point: the daemon can
// replace a supervisor without losing its pods' exit codes and output. Pods are killed first.
func preferOOMKill(pid int) error {
	own, err := procfs.OOMScore()
	if err != nil {
		return err
	}
	return procfs.SetOOMScore(pid, min(own+1, maxOOMScore))
}
