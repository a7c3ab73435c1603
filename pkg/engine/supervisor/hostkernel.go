package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	cgroupstats "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/supervisor/bundle"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
	"github.com/berth-cri/berth/pkg/engine/supervisor/runtimecall"
)

// This file supports runtimes that run containers on the node's kernel (runc, crun): the processes
// of a container have pidfds and are in the container's cgroup.

// hostKernel is the node's kernel. CRIU checkpoints and restores its containers.
type hostKernel struct {
	task       *task
	giveUpCRIU atomic.Pointer[context.CancelFunc]
}

func (k *hostKernel) call(ctx context.Context, c *runtimecall.Call) ([]byte, error) {
	return c.Invoke(ctx, k.task.processes)
}

func (k *hostKernel) adopt(ctx context.Context, l *launch, _ bundle.Facts) (*launched, error) {
	return l.takeOverChild(ctx, k.task.processes)
}

func (k *hostKernel) watch() error {
	return k.task.processes.Ended(k.task.first.pidfd, k.task.ended)
}

func (k *hostKernel) exited(ctx context.Context) {
	if err := k.task.release(ctx); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to delete exited container from its runtime; will retry at its removal")
	}
}

func (k *hostKernel) release(ctx context.Context, unstarted bool) error {
	j := &k.task.journal
	if !j.OwnPIDs && j.Cgroup.Main() != "" {
		// Without its own PID namespace, a container's other processes survive its first one.
		if err := j.Cgroup.Kill(); err != nil {
			log.G(ctx).WithError(err).Warn("Failed to kill remaining processes of exited container")
		}
	}
	// CRIU may leave the cgroup frozen if the processes that it dumps are killed.
	j.Cgroup.Thaw()
	if err := k.task.starter.clean(unstarted); err != nil {
		return fmt.Errorf("clean up after CRIU: %w", err)
	}
	return k.task.erase(ctx, unstarted, runtimecall.RemoveState)
}

// killedWritingTimeout is how long CRIU may take to notice that the container was killed.
const killedWritingTimeout = 2 * time.Second

func (k *hostKernel) signal(_ context.Context, sig unix.Signal, all bool) error {
	j := &k.task.journal // the cgroup of a running container never changes
	if giveUp := k.giveUpCRIU.Load(); giveUp != nil && sig == unix.SIGKILL {
		time.AfterFunc(killedWritingTimeout, *giveUp) // CRIU may wait for the killed processes forever
	}
	wide := (all || sig == unix.SIGKILL && !j.OwnPIDs) && j.Cgroup.Main() != ""
	if !wide {
		k.task.mu.Lock()
		err := k.task.first.signal(sig)
		k.task.mu.Unlock()
		if err == nil && sig == unix.SIGKILL {
			j.Cgroup.Thaw()
		}
		return err
	}
	if sig == unix.SIGKILL {
		return j.Cgroup.Kill()
	}
	sent, err := j.Cgroup.Signal(sig)
	if err == nil && sent == 0 {
		return errFinished
	}
	return err
}

func (k *hostKernel) pids(context.Context) ([]int, error) {
	j := &k.task.journal
	if j.Cgroup.Main() == "" {
		return []int{j.Process.PID}, nil
	}
	return j.Cgroup.ProcessIDs()
}

func (k *hostKernel) stats(context.Context) (*cgroupstats.Metrics, error) {
	return nil, fmt.Errorf("this runtime reports no statistics; read the container's cgroup instead: %w", errdefs.ErrNotImplemented)
}

func (k *hostKernel) update(ctx context.Context, resources []byte) error {
	t := k.task
	return t.whenRunning(ctx, func(ctx context.Context) error {
		file := filepath.Join(t.dir, "resources.json")
		err := os.WriteFile(file, resources, 0o600)
		if err == nil {
			_, err = t.call(ctx, &runtimecall.Call{Args: []string{"update", "--resources", file, t.id}})
		}
		return errors.Join(err, os.RemoveAll(file))
	})
}

func (k *hostKernel) startExec(ctx context.Context, p *process, e *execLaunch) (pid int, err error) {
	ctx, cancel := context.WithTimeout(ctx, runtimecall.Limit(&k.task.journal.Options))
	defer cancel()
	if _, err = k.task.call(ctx, e.call); err == nil {
		pid, err = k.task.execs.running(ctx, p, e, innerProcess{})
	}
	if err != nil {
		k.killStarted(p, e)
	}
	return pid, err
}

// killStarted kills the processes of an exec that failed to start. It finds them by the pid file,
// if the pid in the file is in the container's cgroup, or by the exec's output, which they have
// open.
func (k *hostKernel) killStarted(p *process, e *execLaunch) {
	cgroup, first := k.task.journal.Cgroup, k.task.journal.Process.PID // set before any exec
	leader, session := 0, 0
	pid, err := readPIDFile(e.pidFile)
	pids, pidsErr := cgroup.ProcessIDs()
	if err == nil && pidsErr == nil && pid != first && slices.Contains(pids, pid) {
		leader, session = pid, execSession(pid, first)
		_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
	}
	cgroup.KillLeftovers(leader, session, p.paths.Stdout, p.paths.Stderr)
}

func (k *hostKernel) killLeftovers(exec journal.Exec, session int) {
	go k.task.journal.Cgroup.KillLeftovers(exec.PID, session)
}
