// Package runsc reads what gVisor's runsc prints, and tidies up the files that it keeps.
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

// LocksOf finds the sandbox of a container by the name of its own lock file,
// <container>_sandbox:<sandbox>.lock. A delete that failed half way may have
// removed it; then the container's bundle has the sandbox that it was in.
func LocksOf(root, id, bundleDir string) Locks {
	own, _ := filepath.Glob(filepath.Join(root, id+"_sandbox:*.lock"))
	if len(own) == 0 {
		return Locks{root: root, sandbox: bundle.Read(bundleDir).Sandbox(id)}
	}
	name := strings.TrimSuffix(filepath.Base(own[0]), ".lock")
	return Locks{root: root, sandbox: strings.TrimPrefix(name, id+"_sandbox:")}
}

// Sweep removes the locks of containers that are gone. Every command of runsc
// looks at all containers of its sandbox, and makes the lock again of one that is
// deleted at that moment; whoever is last has to tidy up.
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

// SweepEnded is Sweep once the sandbox is gone, for commands that delete nothing:
// before, a lock without a state may be that of a container in the making.
func (l Locks) SweepEnded() {
	if l.sandbox == "" {
		return
	}
	state := filepath.Join(l.root, l.sandbox+"_sandbox:"+l.sandbox+".state")
	if _, err := os.Stat(state); errors.Is(err, os.ErrNotExist) {
		l.Sweep()
	}
}

// LastJSON is the last JSON object of what a runtime printed; warnings may come
// before it.
func LastJSON(out []byte) []byte {
	if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 {
		return out[i+1:]
	}
	return out
}

// Stats decodes the output of `runsc events --stats`, which has the names of cgroupstats.
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

// RemoveState removes what runsc keeps of a container.
func RemoveState(root, id string) error {
	files, err := filepath.Glob(filepath.Join(root, id+"_sandbox:*"))
	for _, file := range append(files, filepath.Join(root, "runsc-"+id+".sock")) {
		err = errors.Join(err, os.RemoveAll(file))
	}
	return err
}
