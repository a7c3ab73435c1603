// Package session serves commands and connections into containers and pods: ExecSync,
// Exec, Attach and PortForward.
package session

import (
	"time"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// Calls are those of the CRI about sessions.
type Calls struct {
	execs
	streams
}

// Config bounds sessions.
type Config struct {
	// Streaming is where exec, attach and port-forward are served.
	Streaming streaming.Config
	// Drain bounds the wait for a descendant that holds the output of an ended ExecSync
	// command.
	Drain time.Duration
	// MaxExecSyncs bounds how many ExecSync commands run at once; 0 is no bound.
	MaxExecSyncs int
}

// New listens for sessions in pods.
func New(pods *pod.Registry, b *binaries.Binaries, t *task.Service, shims *shim.Manager, c Config) (*Calls, error) {
	e := newExecs(pods, t, c.Drain, c.MaxExecSyncs)
	server, err := streaming.Serve(c.Streaming, sessions{execs: e, binaries: b, shims: shims})
	if err != nil {
		return nil, err
	}
	return &Calls{e, streams{pods, server}}, nil
}

// Close ends all sessions.
func (c *Calls) Close() error { return c.server.Close() }
