package shim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

const leaveTimeout = 5 * time.Second

// TaskExit is a task's exit as reported by a shim's delete action.
type TaskExit struct {
	Status uint32
	At     time.Time
}

// CleanUpForeign runs the shim's delete action, which kills and cleans up a dead shim's task. It
// first kills any shim of that task that still runs. Without the task's bundle nothing is left to
// clean up.
func (m *ForeignShims) CleanUpForeign(ctx context.Context, s Start) (TaskExit, error) {
	if _, err := os.Stat(s.Bundle); err != nil {
		return TaskExit{}, nil
	}
	if err := killStray(s); err != nil {
		return TaskExit{}, fmt.Errorf("kill shim: %w", err)
	}
	var out bytes.Buffer
	if err := m.action(ctx, s, nil, &out, "delete"); err != nil {
		return TaskExit{}, err
	}
	var r taskapi.DeleteResponse
	if err := proto.Unmarshal(out.Bytes(), &r); err != nil || r.ExitedAt == nil {
		return TaskExit{}, nil // cleaned up; the exit is unknown
	}
	return TaskExit{Status: r.ExitStatus, At: r.ExitedAt.AsTime()}, nil
}

// DismissForeign asks a shim without tasks to exit. If it does not exit in time, a goroutine kills
// it: callers do not wait for that. If c is nil, DismissForeign kills the shim at once.
func (m *ForeignShims) DismissForeign(ctx context.Context, ep Endpoint, c *Client, id string) error {
	if c == nil {
		return m.kill(ep)
	}
	if _, err := c.Task.Shutdown(ctx, &taskapi.ShutdownRequest{ID: id}); err != nil {
		return errors.Join(m.kill(ep), c.conn.Close())
	}
	go m.killLater(ep, c)
	return nil
}

// AwaitGone returns when the connection to the process is closed, which happens soon after
// DismissForeign.
func (c *Client) AwaitGone(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// killLater returns when the shim has exited, or kills it after leaveTimeout.
func (m *ForeignShims) killLater(ep Endpoint, c *Client) {
	select {
	case <-c.done:
	case <-time.After(leaveTimeout):
		if err := errors.Join(m.kill(ep), c.conn.Close()); err != nil {
			m.config.Log.WithError(err).WithField("shim", ep.Address).Warn("Failed to kill shim that ignored its shutdown")
		}
	}
}

// process asks the shim for its process id, which a later kill needs. A shim that does not report
// it can only be asked to exit.
func (ep *Endpoint) process(ctx context.Context, c *Client, id string) {
	r, err := c.Task.Connect(ctx, &taskapi.ConnectRequest{ID: id})
	if err != nil {
		return
	}
	if since, err := startTime(int(r.GetShimPid())); err == nil {
		ep.PID, ep.StartTime = int(r.GetShimPid()), since
		c.pid.Store(int64(ep.PID))
	}
}

// kill kills a running shim and removes the socket that it can no longer remove itself.
func (m *ForeignShims) kill(ep Endpoint) error {
	if err := ep.kill(); err != nil {
		return err
	}
	socket := strings.TrimPrefix(ep.Address, "unix://")
	if filepath.Dir(socket) != m.socketDir() {
		return nil // not a socket in our directory
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of a dead shim: %w", err)
	}
	return nil
}

// kill kills the shim's process, unless the process id was reused.
func (ep *Endpoint) kill() error {
	if ep.PID <= 0 {
		return nil
	}
	return killIf(ep.PID, func() bool {
		since, err := startTime(ep.PID)
		return err == nil && since == ep.StartTime
	})
}

// killIf kills a running process if meant confirms its identity.
func killIf(pid int, meant func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // no such process
	}
	defer unix.Close(fd)
	// Check after the open: if meant returns true, the pidfd refers to the same process.
	if !meant() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// ended reports whether the shim's process is known to have exited; a zombie has exited.
func (ep *Endpoint) ended() bool {
	if ep.PID <= 0 {
		return false
	}
	stat, err := procfs.StatOf(ep.PID)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
	}
	return stat.Started != ep.StartTime || stat.Ended()
}

func startTime(pid int) (uint64, error) {
	stat, err := procfs.StatOf(pid)
	return stat.Started, err
}

// killStray kills a shim without a usable connection or answer. It is found by its working
// directory, which is the task's bundle, and by its -id argument. Its children have other
// arguments.
func killStray(s Start) error {
	pids, err := procfs.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if pid == os.Getpid() {
			continue
		}
		if err := killIf(pid, func() bool { return isShimOf(s, pid) }); err != nil {
			return err
		}
	}
	return nil
}

// isShimOf recognizes a shim by its working directory and by the arguments that every shim passes
// on to its server.
func isShimOf(s Start, pid int) bool {
	where, err := os.Stat(procfs.Path(pid, "cwd"))
	if err != nil {
		return false
	}
	// Do not compare the names: the bundle's path may contain links.
	if bundle, err := os.Stat(s.Bundle); err != nil || !os.SameFile(where, bundle) {
		return false
	}
	line, err := os.ReadFile(procfs.Path(pid, "cmdline"))
	return err == nil && runsShimOf(s.ID, line)
}

// runsShimOf reports whether a command line is that of a task's shim, and not that of its delete
// action. Pure.
func runsShimOf(id string, line []byte) bool {
	return bytes.Contains(line, []byte("\x00-id\x00"+id+"\x00")) && !bytes.HasSuffix(line, []byte("\x00delete\x00"))
}
