package shim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// pingService is one that no process serves: each server of ttrpc refuses it at once, by the
// goroutine that reads the connection. The refusal tells a slow runtime from a process that
// is stopped or stuck.
const pingService, pingMethod = "berth.Ping", "Ping"

// unresponsiveError is the error of calls to a process that answers nothing, which may still
// act on them. It is an errdefs.ErrUnavailable.
type unresponsiveError string

func (e unresponsiveError) Error() string { return string(e) }

// Unwrap returns the class.
func (unresponsiveError) Unwrap() error { return errdefs.ErrUnavailable }

// IsUnresponsive tells whether a call failed because its process answers nothing.
func IsUnresponsive(err error) bool {
	_, is := errors.AsType[unresponsiveError](err)
	return is
}

// patience is how long a process may answer nothing while it has a call of that method; 0 is
// for ever. A call that is given up leaves half of what it makes, so those get more time; and a
// foreign shim, which keeps no record of its starts, has all that its caller has. Pure.
func (l limits) patience(method string, foreign bool) time.Duration {
	switch method {
	case "Wait", pingMethod:
		return 0
	case "Create", "Start", "Checkpoint":
		if foreign {
			return math.MaxInt64
		}
		return l.making
	}
	return l.silence
}

// ask pings the process, unless a ping is under way.
func (c *Client) ask() {
	if now := time.Now(); c.asked.CompareAndSwap(nil, &now) {
		answered := make(chan struct{})
		go func() { // until the connection ends
			_ = c.conn.Call(context.Background(), pingService, pingMethod, &emptypb.Empty{}, &emptypb.Empty{})
			close(answered)
		}()
		go c.count(answered)
	}
}

// count measures the silence by its own ticks: while this process stands still, no answer
// can be read.
func (c *Client) count(answered <-chan struct{}) {
	step := c.limits.quiet / 20
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-answered:
			c.silent.Store(0)
			c.asked.Store(nil)
			return
		case <-tick.C:
			c.silent.Add(int64(step))
		}
	}
}

// Answers tells whether the process answers a ping before ctx ends. One that is gone does not
// have to be waited for either.
func (c *Client) Answers(ctx context.Context) bool {
	for c.ask(); c.asked.Load() != nil; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// Unresponsive returns an unresponsiveError if the process is known to answer nothing.
func (c *Client) Unresponsive() error { return c.silentFor(c.limits.silence) }

func (c *Client) silentFor(limit time.Duration) error {
	asked := c.asked.Load()
	if asked == nil || time.Duration(c.silent.Load()) < limit || c.gone() {
		return nil
	}
	pid := int(c.pid.Load())
	if c.Dir != "" {
		pid, _ = journal.Holder(c.Dir)
	}
	return unresponsiveError(fmt.Sprintf("%s (process %d) is unresponsive since %s; stop the pod, or kill that process", c.who, pid, asked.UTC().Format(time.RFC3339)))
}

// intercept gives up a call whose process is found unresponsive, and makes none to one that stays
// so.
func (c *Client) intercept(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
	// Shims demand the namespace of their clients.
	req.Metadata = append(req.Metadata, &ttrpc.KeyValue{Key: "containerd-namespace-ttrpc", Value: Namespace})
	patience := c.limits.patience(req.Method, c.Dir == "")
	if patience == 0 {
		return call(ctx, req, resp)
	}
	if e := c.Unresponsive(); e != nil && patience == c.limits.silence { // what is made is worth the wait
		soon, cancel := context.WithTimeout(ctx, c.limits.quiet)
		defer cancel()
		if !c.Answers(soon) {
			return e
		}
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	var look func()
	look = func() {
		if c.ask(); ctx.Err() == nil {
			time.AfterFunc(c.limits.quiet, look)
		}
		if e := c.silentFor(patience); e != nil {
			giveUp(e)
		}
	}
	defer time.AfterFunc(c.limits.quiet, look).Stop()
	err := call(ctx, req, resp)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		if IsUnresponsive(cause) {
			return cause
		}
		if e := c.Unresponsive(); e != nil {
			return e // the caller's own time is over
		}
	}
	return err
}

// Replace kills the supervisor with that key if it is unresponsive. Whoever needs it next starts
// its successor.
func (m *Supervisors) Replace(ctx context.Context, key string) error {
	s, err := m.take(ctx, key)
	if err != nil {
		return err
	}
	defer s.busy.Unlock()
	if s.up == nil || s.up.Unresponsive() == nil {
		return nil // it was replaced, or answers again
	}
	// The lock tells that the process whose id is in it is there.
	if _, served, err := journal.Served(s.dir); err != nil || !served {
		return err
	}
	m.config.Log.WithError(s.up.Unresponsive()).Warn("Killing unresponsive supervisor; its successor takes over")
	process := Endpoint{}
	process.PID, _ = journal.Holder(s.dir)
	process.StartTime, _ = startTime(process.PID)
	if err := process.kill(); err != nil {
		return err
	}
	if err := awaitUnserved(ctx, s, endPatience, func() bool { return false }); err != nil {
		return err
	}
	s.up = nil // its connection breaks a moment later
	return nil
}

const pingTimeout = 3 * time.Second

// Unresponsive pings all processes, and has a line for each that does not answer.
func (m *Manager) Unresponsive(ctx context.Context) (lines []string) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	clients := m.connected(ctx)
	for _, c := range clients {
		c.ask()
	}
	for _, c := range clients {
		if c.Answers(ctx) {
			continue
		}
		if err := c.silentFor(pingTimeout / 2); err != nil {
			lines = append(lines, err.Error())
		}
	}
	return lines
}
