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

// waitWithin waits for a member's end.
func (t *task) waitWithin() {
	status, known := t.waitStatus(t.context())
	exit := Exit{PID: t.journal.Process.PID, Status: status, Unknown: !known, ExitedAt: time.Now().UnixNano()}
	if known {
		exit.OOM = status == killedStatus && t.claimOOM()
	} else if sandbox, ok := t.sandboxEnd(); ok {
		exit = withSandbox(sandbox)
	}
	t.finish(exit)
	t.afterwards()
}

// killedStatus is that of a process that was killed.
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

// sandboxEnd says how the sandbox of a member ended.
func (t *task) sandboxEnd() (Exit, bool) {
	for _, other := range t.sharers() {
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
func (t *task) sharers() []*task {
	sandbox := t.hostProcess()
	return slices.DeleteFunc(t.supervisor.all(), func(other *task) bool {
		return other == t || other.hostProcess() != sandbox
	})
}

// hostProcess is the process of the host that a task runs in.
func (t *task) hostProcess() Process {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.journal.Process
}

// claimOOM says whether a member that was killed may have been so for want of
// memory: the kernel killed a process of its sandbox's cgroup since it runs, which
// is excused to the others. gVisor goes on without a process that was lent to one
// of its own, and kills only that.
func (t *task) claimOOM() bool {
	if !t.oom.killed() {
		return false
	}
	kills := t.oom.count()
	for _, other := range t.sharers() {
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

func (t *task) waitStatus(ctx context.Context) (status uint32, known bool) {
	locks := t.locks()
	defer locks.sweepEnded()
	for {
		out, err := t.processes.invokeForever(ctx, &call{
			options:     &t.journal.Options,
			args:        []string{"wait", t.id},
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
		if !t.runsWithin(ctx) {
			log.G(ctx).WithError(err).Warn("Failed to determine container exit status")
			return unknownStatus, false
		}
		time.Sleep(waitPause)
	}
}

// runsWithin asks the runtime whether it believes that the container runs.
func (t *task) runsWithin(ctx context.Context) bool {
	out, err := t.call(ctx, &call{args: []string{"state", t.id}})
	if err != nil {
		return false
	}
	var state struct {
		Status string `json:"status"`
	}
	return json.Unmarshal(lastJSON(out), &state) == nil && state.Status == "running"
}

// lastJSON is the last JSON object of what a runtime printed; warnings may come
// before it.
func lastJSON(out []byte) []byte {
	if i := bytes.LastIndex(out, []byte("\n{")); i >= 0 {
		return out[i+1:]
	}
	return out
}

// invokeForever is invoke without a bound.
func (p *processes) invokeForever(ctx context.Context, c *call) ([]byte, error) {
	r, err := p.begin(c)
	if err != nil {
		return nil, err
	}
	defer r.close()
	select {
	case <-r.ended:
		return r.result()
	case <-ctx.Done():
		return nil, r.abort(ctx)
	}
}

// signalWithin sends a signal to the container's first process or to all.
func (t *task) signalWithin(ctx context.Context, sig unix.Signal, all bool) error {
	args := []string{"kill"}
	if all {
		args = append(args, "--all")
	}
	return t.killCall(ctx, append(args, t.id, strconv.Itoa(int(sig))))
}

// signalInner sends a signal to an exec.
func (t *task) signalInner(ctx context.Context, pid int, sig unix.Signal) error {
	return t.killCall(ctx, []string{"kill", "--pid", strconv.Itoa(pid), t.id, strconv.Itoa(int(sig))})
}

func (t *task) killCall(ctx context.Context, args []string) error {
	_, err := t.call(context.WithoutCancel(ctx), &call{args: args})
	if err == nil {
		return nil
	}
	t.mu.Lock()
	gone := t.first.state == stopped
	t.mu.Unlock()
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

// pidsWithin lists the pids of a container as its own kernel counts them.
func (t *task) pidsWithin(ctx context.Context) ([]int, error) {
	out, err := t.call(ctx, &call{args: []string{"ps", "--format", "json", t.id}})
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

// statsWithin returns statistics that no cgroup of this host tells.
func (t *task) statsWithin(ctx context.Context) (*cgroupstats.Metrics, error) {
	if !t.journal.Options.OwnKernel {
		return nil, fmt.Errorf("this runtime reports no statistics; read the container's cgroup instead: %w", errdefs.ErrNotImplemented)
	}
	out, err := t.call(ctx, &call{args: []string{"events", "--stats", t.id}})
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
	for _, words := range []string{"no such process", "is not running", "no such container"} {
		if strings.Contains(strings.ToLower(e.message), words) {
			return true
		}
	}
	return false
}
