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

// Programs are the programs that the supervisors below a state directory run, or that their
// successors will. It is errdefs.ErrFailedPrecondition when a directory does not have one yet: it
// is only just coming into being.
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

// passedOn are the variables of the daemon that programs of pods may need. The daemon's
// environment can hold passwords, of proxies for one, and a supervisor or a shim lives
// beside pods, with memory and children of its own. NOTIFY_SOCKET must never be here:
// runc would take it for its container's. Neither must Go's tuning: it is for the daemon's
// memory, and supervisors and runtimes are Go, too.
var passedOn = []string{"PATH", "LD_LIBRARY_PATH", "HOME", "TMPDIR", "TZ", "LANG", "LANGUAGE", "DBUS_SYSTEM_BUS_ADDRESS"}

// kataConfig names a configuration file. Kata's shim has no other way to be told but
// options, which handlers need not have.
const kataConfig = "KATA_CONF_FILE"

// Environment is what of this process's environment a supervisor and a runtime are
// started with.
func Environment() []string { return environment(os.Environ()) }

// environment is what of environ a program of pods is started with: passedOn, LC_*, and
// what more names.
func environment(environ []string, more ...string) []string {
	return slices.DeleteFunc(slices.Clone(environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return !slices.Contains(passedOn, name) && !strings.HasPrefix(name, "LC_") && !slices.Contains(more, name)
	})
}

const maxOOMScore = 1000

// diesBefore has the kernel that is out of memory take a process rather than this one,
// by as little as there is: both come after all pods, and the daemon can replace a
// supervisor, which is how its pods' exit codes and output survive.
func diesBefore(pid int) error {
	own, err := procfs.OOMScore()
	if err != nil {
		return err
	}
	return procfs.SetOOMScore(pid, min(own+1, maxOOMScore))
}
