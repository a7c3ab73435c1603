// Package runsc parses the output of gVisor's runsc, and cleans up its files.
package runsc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"

	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
)

// Locks are the lock files of the containers of one sandbox of runsc.
type Locks struct{ root, sandbox string }

// LocksOf finds the sandbox of a container by the name of its lock file,
// <container>_sandbox:<sandbox>.lock. A delete that failed halfway may have removed that file; then
// the container's bundle names the sandbox.
func LocksOf(root, id, bundleDir string) Locks {
	own, _ := filepath.Glob(filepath.Join(root, id+"_sandbox:*.lock"))
	if len(own) == 0 {
		return Locks{root: root, sandbox: bundle.Read(bundleDir).Sandbox(id)}
	}
	name := strings.TrimSuffix(filepath.Base(own[0]), ".lock")
	return Locks{root: root, sandbox: strings.TrimPrefix(name, id+"_sandbox:")}
}

// Sweep removes the locks of removed containers. Every runsc command opens the locks of all
// containers of its sandbox, and so recreates the lock of a container that another command deletes
// at that moment: the caller runs Sweep after its command.
func (l Locks) Sweep() {
	if l.sandbox == "" {
		return
	}
	locks, _ := filepath.Glob(filepath.Join(l.root, "*_sandbox:"+l.sandbox+".lock"))
	for _, lock := range locks {
		if _, err := os.Stat(strings.TrimSuffix(lock, ".lock") + ".state"); errors.Is(err, os.ErrNotExist) {
			os.Remove(lock)
		}
	}
}

// SweepEnded is Sweep for commands that do not delete a container. It does nothing while the
// sandbox exists, because a lock without a state may belong to a container that is being created.
func (l Locks) SweepEnded() {
	if l.sandbox == "" {
		return
	}
	state := filepath.Join(l.root, l.sandbox+"_sandbox:"+l.sandbox+".state")
	if _, err := os.Stat(state); errors.Is(err, os.ErrNotExist) {
		l.Sweep()
	}
}

// LastJSON returns the last JSON object of a runtime's output; warnings may precede it.
func LastJSON(out []byte) []byte {
	if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 {
		return out[i+1:]
	}
	return out
}

// Stats decodes the output of `runsc events --stats`, which uses the field names of cgroupstats
// except for percpu, which is not read.
func Stats(out []byte) (*cgroupstats.Metrics, error) {
	var event struct {
		Data struct {
			CPU    *cgroupstats.CPUStat    `json:"cpu"`
			Memory *cgroupstats.MemoryStat `json:"memory"`
			Pids   *cgroupstats.PidsStat   `json:"pids"`
		} `json:"data"`
	}
	if err := json.Unmarshal(LastJSON(out), &event); err != nil {
		return nil, fmt.Errorf("decode output of the runtime's events: %w", err)
	}
	d := &event.Data
	return &cgroupstats.Metrics{CPU: d.CPU, Memory: d.Memory, Pids: d.Pids}, nil
}

// RemoveState removes the files that runsc keeps for a container.
func RemoveState(root, id string) error {
	files, err := filepath.Glob(filepath.Join(root, id+"_sandbox:*"))
	for _, file := range append(files, filepath.Join(root, "runsc-"+id+".sock")) {
		err = errors.Join(err, os.RemoveAll(file))
	}
	return err
}
