// Package nri lets plugins of the Node Resource Interface see the pods of this
// node and change their containers, by github.com/containerd/nri's adaptation.
//
// A nil *Plugins is valid and does nothing, so callers need not ask. With
// plugins every hook is one message to each of them, one hook at a time on the
// whole node: that is how the interface is made. A plugin that does not answer
// in time is dropped, and the call goes on without it.
//
// Plugins are told of each object once per step of its life: that it stopped or
// was removed is said only of what they know. A plugin that registers late gets
// the whole node at once (Synchronize), and what is being made at that moment is
// part of it, so nothing is lost between the two.
package nri

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"
)

// Config says where plugins come from. The names are those of containerd.
type Config struct {
	// Disable turns everything off.
	Disable bool
	// SocketPath is where plugins connect; empty is nowhere.
	SocketPath string
	// PluginPath holds plugins that are started with the daemon.
	PluginPath string
	// PluginConfigPath holds the configurations of those.
	PluginConfigPath string
	// LinkDir is made, with links to the plugins that are started, if others must
	// not be. Nobody else may use it.
	LinkDir string
	// RegistrationTimeout and RequestTimeout bound what a plugin may take.
	RegistrationTimeout, RequestTimeout time.Duration
	// Name and Version are what the plugins are told of the runtime.
	Name, Version string
}

// Node is what plugins are told of when they register, and what they may change.
type Node interface {
	// Pods and Containers are all that a caller of the CRI can see.
	Pods() []Subject
	Containers() []Subject
	// UpdateContainer changes limits of a container. That it is gone, or has
	// ended, is no error.
	UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error
}

// Subject is a pod, or a container in one. Its facts are asked for only when
// there is somebody to tell.
type Subject interface {
	ID() string
	Pod() Pod
	Container() Container // of a container only
}

// Plugins are the plugins of this node.
type Plugins struct {
	config     Config
	node       Node
	adaptation *adaptation.Adaptation
	count      atomic.Int32 // of plugins that are registered
	started    chan struct{}
	closed     chan struct{}
	close      func()
	settled    settled

	mu       sync.Mutex // guards what follows, and makes hooks follow each other
	stages   map[string]stage
	arriving map[string]Subject // told to plugins, not yet part of Node
}

// Open returns nil if no plugin can come: NRI is disabled, or there is neither a
// plugin to start nor a socket to connect to.
func Open(c Config, n Node) (*Plugins, error) {
	if c.Disable {
		return nil, nil
	}
	found, err := install(c)
	if err != nil {
		return nil, err
	}
	listen := c.SocketPath != ""
	if !found.any && !listen {
		return nil, nil
	}
	p := &Plugins{
		config: c, node: n, started: make(chan struct{}), closed: make(chan struct{}),
		stages: map[string]stage{}, arriving: map[string]Subject{},
	}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	p.settled.last = make(chan struct{})
	close(p.settled.last)
	options := []adaptation.Option{
		adaptation.WithPluginPath(found.dir),
		adaptation.WithPluginConfigPath(c.PluginConfigPath),
		adaptation.WithMetrics(counter{p}),
	}
	if listen {
		if err := free(c.SocketPath); err != nil {
			return nil, err
		}
		options = append(options, adaptation.WithSocketPath(c.SocketPath))
	} else {
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	logHere()
	adaptation.SetPluginRegistrationTimeout(c.RegistrationTimeout)
	adaptation.SetPluginRequestTimeout(c.RequestTimeout)
	p.adaptation, err = adaptation.New(c.Name, c.Version, p.synchronize, p.unsolicited, options...)
	if err != nil {
		return nil, fmt.Errorf("nri: %w", err)
	}
	return p, nil
}

// free makes sure that nobody listens on the socket: the adaptation would take
// it away from another runtime without a word.
func free(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil
	}
	c.Close()
	return fmt.Errorf("nri.socket_path: another process listens on %s; use a separate socket for each runtime of the node: %w", path, errdefs.ErrFailedPrecondition)
}

// Start starts the installed plugins and takes connections. Every plugin is told
// of the whole node first. Hooks wait until it has returned.
func (p *Plugins) Start() error {
	if p == nil {
		return nil
	}
	// Who connects meanwhile is synchronized when hooks no longer wait.
	block := p.adaptation.BlockPluginSync()
	defer block.Unblock()
	if err := p.adaptation.Start(); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	close(p.started)
	return nil
}

// Close ends the plugins that were started here and takes no more connections.
func (p *Plugins) Close() error {
	if p == nil {
		return nil
	}
	p.close()
	p.adaptation.Stop()
	return nil
}

// counter learns from the adaptation how many plugins there are.
type counter struct{ *Plugins }

func (c counter) UpdatePluginCount(n int) { c.count.Store(int32(n)) } //nolint:gosec // plugins of a node

func (counter) RecordPluginInvocation(string, string, error) {}

func (counter) RecordPluginLatency(string, string, time.Duration) {}

func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

// stage is how much of an object's life plugins were told of. The zero value is
// nothing, or everything: they do not know it (any more).
type stage int

const (
	unknown stage = iota
	created
	running
	stopped
)

// stageOf is what plugins know of a container that they are told the state of.
var stageOf = map[api.ContainerState]stage{
	api.ContainerState_CONTAINER_CREATED: created,
	api.ContainerState_CONTAINER_RUNNING: running,
	api.ContainerState_CONTAINER_PAUSED:  running,
	api.ContainerState_CONTAINER_STOPPED: stopped,
}

// set needs p.mu.
func (p *Plugins) set(id string, s stage) {
	if s == unknown {
		delete(p.stages, id)
		return
	}
	p.stages[id] = s
}

// logHere sends what the adaptation logs to the daemon's log. It has one logger
// for the whole process.
var logHere = sync.OnceFunc(func() { nrilog.Set(logger{}) })

type logger struct{}

const (
	said      = "NRI message"
	complains = "NRI reported a problem"
)

// Debugf traces; what the library logs at level info is about its own steps, too.
func (logger) Debugf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Trace(said)
}

func (logger) Infof(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Debug(said)
}

func (logger) Warnf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Warn(complains)
}

// Errorf warns. A plugin that came too late to be synchronized, or left, connects again: it starts before
// berth serves, or is stopped at that moment.
func (logger) Errorf(ctx context.Context, format string, args ...any) {
	entry := log.G(ctx).WithField("detail", fmt.Sprintf(format, args...))
	if strings.HasPrefix(format, "failed to synchronize plugin") || strings.HasPrefix(format, "failed to start external plugin") {
		entry.Warn("Failed to take in NRI plugin; it can connect again")
		return
	}
	entry.Error(complains)
}
