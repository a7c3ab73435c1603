// Package session serves commands and connections into containers and pods: ExecSync,
// Exec, Attach and PortForward.
package session

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/engine/task"
)

// Calls implements the CRI's calls for sessions.
type Calls struct {
	execs
	streams
}

// New starts the streaming server with configuration c.
func New(pods *pod.Registry, b *binaries.Binaries, t *task.Service, shims *shim.Manager, c streaming.Config) (*Calls, error) {
	e := newExecs(pods, t)
	server, err := streaming.Serve(c, sessions{execs: e, binaries: b, shims: shims})
	if err != nil {
		return nil, err
	}
	return &Calls{e, streams{pods, server}}, nil
}

// Close ends the sessions of Exec, Attach and PortForward, and waits a few seconds for them.
func (c *Calls) Close() error { return c.server.Close() }
