package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// This file is about runtimes whose containers run on a kernel of their own
// (gVisor's runsc): their processes are none of this host. The process that
// runsc names is the sandbox. It ends, with the right status, when the first
// container of the sandbox ends, so that one is watched like any other. The
// other containers of the sandbox are members of it; only `runsc wait` knows
// when they end, so one such process runs for each of them.

// ownKernel is what is asked of the runtime about a container whose processes are none
// of this host.
type ownKernel struct{ task *task }

// awaitExit waits for a member's end.
func (k *ownKernel) awaitExit() {
	status, known := k.waitStatus(k.task.context())
	exit := Exit{PID: k.task.journal.Process.PID, Status: status, Unknown: !known, ExitedAt: time.Now().UnixNano()}
	if known {
		exit.OOM = status == killedStatus && k.claimOOM()
	} else if sandbox, ok := k.sandboxExit(); ok {
		exit = withSandbox(sandbox)
	}
	k.task.finish(exit)
	k.task.afterwards()
}

const killedStatus = 128 + uint32(unix.SIGKILL)

// withSandbox is how a member ended whose sandbox ended like that while it ran. A
// sandbox that was not killed broke, and what became of its containers is not known.
func withSandbox(sandbox Exit) Exit {
	e := Exit{PID: sandbox.PID, Status: unknownStatus, Unknown: true, ExitedAt: sandbox.ExitedAt, OOM: sandbox.OOM}
	if sandbox.Status == killedStatus && !sandbox.Unknown {
		e.Status, e.Unknown = killedStatus, false
		e.Why = "the sandbox that runs all containers of the pod was killed"
	}
	return e
}

// sandboxGrace is how long a sandbox that does not answer may take to end.
const sandboxGrace = 5 * time.Second

func (k *ownKernel) sandboxExit() (Exit, bool) {
	for _, other := range k.sharers() {
		if other.journal.Member {
			continue
		}
		select {
		case <-other.first.done:
			return other.first.exit, true
		case <-time.After(sandboxGrace):
		}
	}
	return Exit{}, false
}

// sharers are the other tasks that run in the sandbox of a member.
func (k *ownKernel) sharers() []*task {
	sandbox := k.task.hostProcess()
	return slices.DeleteFunc(k.task.supervisor.all(), func(other *task) bool {
		return other == k.task || other.hostProcess() != sandbox
	})
}

func (t *task) hostProcess() Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.Process
}

// claimOOM says whether a member that was killed may have been so for want of
// memory: the kernel killed a process of its sandbox's cgroup since it runs, which
// is excused to the others. gVisor goes on without a process that was lent to one
// of its own, and kills only that.
func (k *ownKernel) claimOOM() bool {
	if !k.task.oom.killed() {
		return false
	}
	kills := k.task.oom.count()
	for _, other := range k.sharers() {
		other.mu.Lock()
		// One that began after the kill has excused it already.
		other.journal.ExcusedOOM = min(other.journal.ExcusedOOM+1, kills)
		other.oom.setExcuse(other.journal.ExcusedOOM)
		if err := other.save(); err != nil {
			log.G(other.context()).WithError(err).Warn("Failed to record out-of-memory kill of another container; it counts for this one after a restart")
		}
		other.mu.Unlock()
	}
	return true
}

// waitPause is how long to wait before waiting is tried again that failed
// although the container runs.
const waitPause = time.Second

func (k *ownKernel) waitStatus(ctx context.Context) (status uint32, known bool) {
	locks := k.task.locks()
	defer locks.sweepEnded()
	for {
		out, err := k.task.processes.invokeForever(ctx, &call{
			options:     &k.task.journal.Options,
			args:        []string{"wait", k.task.id},
			deathSignal: unix.SIGKILL, // its successor starts its own
		})
		if err == nil {
			var result struct {
				ExitStatus *uint32 `json:"exitStatus"`
			}
			if json.Unmarshal(lastJSON(out), &result) == nil && result.ExitStatus != nil {
				return *result.ExitStatus, true
			}
			err = fmt.Errorf("the runtime's wait reported no exit status: %w", errdefs.ErrUnknown)
		}
		if !k.task.runs(ctx) {
			log.G(ctx).WithError(err).Warn("Failed to determine container exit status")
			return unknownStatus, false
		}
		time.Sleep(waitPause)
	}
}

// lastJSON is the last JSON object of what a runtime printed; warnings may come
// before it.
func lastJSON(out []byte) []byte {
	if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 {
		return out[i+1:]
	}
	return out
}

// signal sends a signal to the container's first process or to all.
func (k *ownKernel) signal(ctx context.Context, sig unix.Signal, all bool) error {
	args := []string{"kill"}
	if all {
		args = append(args, "--all")
	}
	// A sandbox that is being restored or written may have no process that takes a signal.
	if sig == unix.SIGKILL && !k.task.isMember() && (k.task.journal.Checkpoint != "" || k.task.writing.Load()) {
		return k.signalWaiting(sig) // with or without processes, it is the end of the sandbox
	}
	err := k.killCall(ctx, append(args, k.task.id, strconv.Itoa(int(sig))))
	if k.waits(err) {
		return k.signalWaiting(sig)
	}
	return err
}

func (k *ownKernel) signalExec(ctx context.Context, pid int, sig unix.Signal) error {
	return k.killCall(ctx, []string{"kill", "--pid", strconv.Itoa(pid), k.task.id, strconv.Itoa(int(sig))})
}

func (k *ownKernel) killCall(ctx context.Context, args []string) error {
	_, err := k.task.call(context.WithoutCancel(ctx), &call{args: args})
	if err == nil {
		return nil
	}
	k.task.mu.Lock()
	gone := k.task.first.state == stopped
	k.task.mu.Unlock()
	if gone || finishedWithin(err) {
		return errFinished
	}
	return err
}

// sandboxLocks are the lock files of the containers of one sandbox of runsc.
type sandboxLocks struct{ root, sandbox string }

// locksOf finds the sandbox of a container by the name of its own lock file,
// <container>_sandbox:<sandbox>.lock. A delete that failed half way may have
// removed it; then the container's bundle says what sandbox it was in.
func locksOf(o *Options, id, bundle string) sandboxLocks {
	if !o.OwnKernel {
		return sandboxLocks{}
	}
	own, _ := filepath.Glob(filepath.Join(o.Root, id+"_sandbox:*.lock"))
	if len(own) == 0 {
		return sandboxLocks{root: o.Root, sandbox: readBundle(bundle).sandbox(id)}
	}
	name := strings.TrimSuffix(filepath.Base(own[0]), ".lock")
	return sandboxLocks{root: o.Root, sandbox: strings.TrimPrefix(name, id+"_sandbox:")}
}

// sweep removes the locks of containers that are gone. Every command of runsc
// looks at all containers of its sandbox, and makes the lock again of one that is
// deleted at that moment; whoever is last has to tidy up.
func (l sandboxLocks) sweep() {
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

// sweepEnded is sweep once the sandbox is gone, for commands that delete nothing:
// before, a lock without a state may be that of a container in the making.
func (l sandboxLocks) sweepEnded() {
	if l.sandbox == "" {
		return
	}
	state := filepath.Join(l.root, l.sandbox+"_sandbox:"+l.sandbox+".state")
	if _, err := os.Stat(state); errors.Is(err, os.ErrNotExist) {
		l.sweep()
	}
}

// pids lists the pids of a container as its own kernel counts them.
func (k *ownKernel) pids(ctx context.Context) ([]int, error) {
	out, err := k.task.call(ctx, &call{args: []string{"ps", "--format", "json", k.task.id}})
	if err != nil {
		return nil, err
	}
	var pids []int
	if err := json.Unmarshal(bytes.TrimSpace(out), &pids); err != nil {
		return nil, fmt.Errorf("decode output of the runtime's ps: %w", err)
	}
	return pids, nil
}

// runtimeStats is what `runsc events --stats` prints.
type runtimeStats struct {
	Data struct {
		CPU struct {
			Usage struct {
				Kernel uint64   `json:"kernel"`
				User   uint64   `json:"user"`
				Total  uint64   `json:"total"`
				PerCPU []uint64 `json:"percpu"`
			} `json:"usage"`
		} `json:"cpu"`
		Memory struct {
			Cache uint64 `json:"cache"`
			Usage struct {
				Limit   uint64 `json:"limit"`
				Usage   uint64 `json:"usage"`
				Max     uint64 `json:"max"`
				Failcnt uint64 `json:"failcnt"`
			} `json:"usage"`
		} `json:"memory"`
		Pids struct {
			Current uint64 `json:"current"`
			Limit   uint64 `json:"limit"`
		} `json:"pids"`
	} `json:"data"`
}

// stats returns statistics that no cgroup of this host tells.
func (k *ownKernel) stats(ctx context.Context) (*cgroupstats.Metrics, error) {
	if !k.task.journal.Options.OwnKernel {
		return nil, fmt.Errorf("this runtime reports no statistics; read the container's cgroup instead: %w", errdefs.ErrNotImplemented)
	}
	out, err := k.task.call(ctx, &call{args: []string{"events", "--stats", k.task.id}})
	if err != nil {
		return nil, err
	}
	var s runtimeStats
	if err := json.Unmarshal(lastJSON(out), &s); err != nil {
		return nil, fmt.Errorf("decode output of the runtime's events: %w", err)
	}
	d := &s.Data
	return &cgroupstats.Metrics{
		CPU: &cgroupstats.CPUStat{Usage: &cgroupstats.CPUUsage{
			Total: d.CPU.Usage.Total, Kernel: d.CPU.Usage.Kernel, User: d.CPU.Usage.User, PerCPU: d.CPU.Usage.PerCPU,
		}},
		Memory: &cgroupstats.MemoryStat{
			Cache: d.Memory.Cache,
			Usage: &cgroupstats.MemoryEntry{
				Limit: d.Memory.Usage.Limit, Usage: d.Memory.Usage.Usage, Max: d.Memory.Usage.Max, Failcnt: d.Memory.Usage.Failcnt,
			},
		},
		Pids: &cgroupstats.PidsStat{Current: d.Pids.Current, Limit: d.Pids.Limit},
	}, nil
}

// finishedWithin says whether a signal failed because there is nobody left to
// take it, which runsc tells in words only.
func finishedWithin(err error) bool {
	if unknownToRuntime(err) {
		return true
	}
	var e *errCall
	if !errors.As(err, &e) {
		return false
	}
	for _, words := range []string{"no such process", "is not running", "no such container", "connection refused"} { // the last is of a sandbox that has ended
		if strings.Contains(strings.ToLower(e.message), words) {
			return true
		}
	}
	return false
}
