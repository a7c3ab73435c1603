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

// pingService is served by no process: each ttrpc server refuses it at once, in the goroutine that
// reads the connection. The refusal distinguishes a slow runtime from a stopped or stuck process.
const pingService, pingMethod = "berth.Ping", "Ping"

// unresponsiveError is the error of calls to an unresponsive process, which may still act on them
// later. Its class is errdefs.ErrUnavailable.
type unresponsiveError string

func (e unresponsiveError) Error() string { return string(e) }

// Unwrap returns the class.
func (unresponsiveError) Unwrap() error { return errdefs.ErrUnavailable }

// IsUnresponsive reports whether a call failed because its process is unresponsive.
func IsUnresponsive(err error) bool {
	_, is := errors.AsType[unresponsiveError](err)
	return is
}

// patience is how long a process may be unresponsive during a call of method; 0 is no limit.
// Calls that create an object get more time: an abandoned call leaves it partially created. A
// foreign shim, which does not record its starts, gets all the time of its caller. Pure.
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

// ping sends a ping, unless one is under way.
func (c *Client) ping() {
	if now := time.Now(); c.asked.CompareAndSwap(nil, &now) {
		answered := make(chan struct{})
		go func() { // until the connection ends
			_ = c.conn.Call(context.Background(), pingService, pingMethod, &emptypb.Empty{}, &emptypb.Empty{})
			close(answered)
		}()
		go c.count(answered)
	}
}

// count measures how long the process is unresponsive. It counts ticks, because there are none
// while this process is stopped and cannot read a response.
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

// Answers reports whether the process answers a ping before ctx ends. It is also true for a process
// that has exited, because calls to it fail at once.
func (c *Client) Answers(ctx context.Context) bool {
	for c.ping(); c.asked.Load() != nil; time.Sleep(time.Millisecond) {
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// Unresponsive returns an unresponsiveError if the process is known to be unresponsive.
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

// intercept abandons calls once their process is unresponsive, and refuses calls until it responds.
func (c *Client) intercept(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
	// Shims require the namespace of their clients.
	req.Metadata = append(req.Metadata, &ttrpc.KeyValue{Key: "containerd-namespace-ttrpc", Value: Namespace})
	patience := c.limits.patience(req.Method, c.Dir == "")
	if patience == 0 {
		return call(ctx, req, resp)
	}
	if e := c.Unresponsive(); e != nil && patience == c.limits.silence { // calls that create something wait
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
		if c.ping(); ctx.Err() == nil {
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
			return e // the caller's context ended first
		}
	}
	return err
}

// Replace kills the supervisor with that key if it is unresponsive. The next call of Supervisor
// starts its successor.
func (m *Supervisors) Replace(ctx context.Context, key string) error {
	s, err := m.take(ctx, key)
	if err != nil {
		return err
	}
	defer s.busy.Unlock()
	if s.up == nil || s.up.Unresponsive() == nil {
		return nil // it was replaced, or answers again
	}
	// The lock proves that the process with the recorded id runs.
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
	s.up = nil // its connection closes a moment later
	return nil
}

const pingTimeout = 3 * time.Second

// Unresponsive pings all processes, and returns a line for each one that is unresponsive.
func (m *Manager) Unresponsive(ctx context.Context) (lines []string) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	clients := m.connected(ctx)
	for _, c := range clients {
		c.ping()
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
