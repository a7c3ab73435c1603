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

// Death is what a shim's delete action says about the end of a task.
type Death struct {
	Status uint32
	At     time.Time
}

// CleanUpForeign runs the shim's delete action: it kills and cleans up what a dead
// shim left of a task. A shim of that task that runs all the same is killed before.
// Without the task's bundle there is nothing to bury.
func (m *ForeignShims) CleanUpForeign(ctx context.Context, s Start) (Death, error) {
	if _, err := os.Stat(s.Bundle); err != nil {
		return Death{}, nil
	}
	if err := killStray(s); err != nil {
		return Death{}, fmt.Errorf("kill shim: %w", err)
	}
	var out bytes.Buffer
	if err := m.action(ctx, s, nil, &out, "delete"); err != nil {
		return Death{}, err
	}
	var r taskapi.DeleteResponse
	if err := proto.Unmarshal(out.Bytes(), &r); err != nil || r.ExitedAt == nil {
		return Death{}, nil // it is gone, and how it ended is not said
	}
	return Death{Status: r.ExitStatus, At: r.ExitedAt.AsTime()}, nil
}

// DismissForeign makes a shim leave that has no task any more: it is asked to,
// and killed when it stays. The kill comes later, by a goroutine; a shim is not
// worth to wait for. c is nil if the shim cannot be reached.
func (m *ForeignShims) DismissForeign(ctx context.Context, ep Endpoint, c *Client, id string) error {
	if c == nil {
		return m.kill(ep)
	}
	if _, err := c.Task.Shutdown(ctx, &taskapi.ShutdownRequest{ID: id}); err != nil {
		return errors.Join(m.kill(ep), c.conn.Close())
	}
	go m.seeOff(ep, c)
	return nil
}

// AwaitGone returns when the process is gone or its connection is. One that was
// told to leave (DismissForeign) is, soon.
func (c *Client) AwaitGone(ctx context.Context) error {
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// seeOff ends with the shim, or soon after leaveTimeout.
func (m *ForeignShims) seeOff(ep Endpoint, c *Client) {
	select {
	case <-c.done:
	case <-time.After(leaveTimeout):
		if err := errors.Join(m.kill(ep), c.conn.Close()); err != nil {
			m.config.Log.WithError(err).WithField("shim", ep.Address).Warn("Failed to kill shim that ignored its shutdown")
		}
	}
}

// process asks the shim for its process, to be able to kill it later. One that
// does not say can only be asked to leave.
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

// kill ends a shim, if it is there, and removes the socket that it can no longer
// remove by itself.
func (m *ForeignShims) kill(ep Endpoint) error {
	if err := ep.kill(); err != nil {
		return err
	}
	socket := strings.TrimPrefix(ep.Address, "unix://")
	if filepath.Dir(socket) != m.socketDir() {
		return nil // it chose a place that is not ours
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket of a dead shim: %w", err)
	}
	return nil
}

// kill ends the shim's process, if it is there and is the one that was started.
func (ep *Endpoint) kill() error {
	if ep.PID <= 0 {
		return nil
	}
	return killIf(ep.PID, func() bool {
		since, err := startTime(ep.PID)
		return err == nil && since == ep.StartTime
	})
}

// killIf kills a process, unless it has ended or is another than the one meant.
func killIf(pid int, meant func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil //nolint:nilerr // there is no such process
	}
	defer unix.Close(fd)
	// Asked after the open: what the pidfd refers to cannot change any more.
	if !meant() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// ended tells whether the shim's process is known to have ended, also if nobody has
// waited for it yet.
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

// killStray kills the process of a shim that cannot be asked for it: it was started
// in the task's bundle, for that id, and its connection or its answer is of no use.
// What a shim starts has other arguments.
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

// isShimOf tells a shim by where it was started and by the arguments that every shim
// passes on to its server.
func isShimOf(s Start, pid int) bool {
	where, err := os.Stat(procfs.Path(pid, "cwd"))
	if err != nil {
		return false
	}
	// Not by name: the bundle's may lead over links.
	if bundle, err := os.Stat(s.Bundle); err != nil || !os.SameFile(where, bundle) {
		return false
	}
	line, err := os.ReadFile(procfs.Path(pid, "cmdline"))
	return err == nil && runsShimOf(s.ID, line)
}

// runsShimOf tells by a command line whether it is that of a task's shim, and not of
// the delete action, which cleans up after it. Pure.
func runsShimOf(id string, line []byte) bool {
	return bytes.Contains(line, []byte("\x00-id\x00"+id+"\x00")) && !bytes.HasSuffix(line, []byte("\x00delete\x00"))
}
