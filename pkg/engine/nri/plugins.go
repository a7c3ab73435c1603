// Package nri lets plugins of the Node Resource Interface see the pods of this node and change
// their containers, by github.com/containerd/nri's adaptation.
//
// A nil *Plugins is valid and does nothing. Every hook is one message to each plugin, and one hook
// runs at a time on the whole node, as the interface requires. A plugin that does not answer in
// time is dropped, and the call continues without it.
//
// Plugins receive each step of an object's life once: they receive its stop and removal only if
// they know the object. A plugin that registers late receives the whole node at once (Synchronize).
// This includes objects that are being created, so that no step is lost.
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

// Config locates plugins. The names are those of containerd.
type Config struct {
	// Disable turns NRI off.
	Disable bool
	// SocketPath is where plugins connect; if empty, they cannot connect.
	SocketPath string
	// PluginPath contains plugins that are started with the daemon.
	PluginPath string
	// PluginConfigPath contains the configurations of these plugins.
	PluginConfigPath string
	// LinkDir is created, with links to the plugins that may be started, if PluginPath also
	// contains plugins that must not be started. Only this daemon may use it.
	LinkDir string
	// RegistrationTimeout and RequestTimeout limit how long a plugin may take.
	RegistrationTimeout, RequestTimeout time.Duration
	// Name and Version describe the runtime to plugins.
	Name, Version string
}

// Node returns what plugins receive when they register, and makes the changes that they request.
type Node interface {
	// Pods and Containers are all that a client of the CRI can list.
	Pods() []Subject
	Containers() []Subject
	// UpdateContainer changes the limits of a container. It returns nil if the container does not
	// exist or has exited.
	UpdateContainer(ctx context.Context, id string, change *api.LinuxResources) error
}

// Subject is a pod, or a container in one. Plugins reads its facts only if a plugin is registered.
type Subject interface {
	ID() string
	Pod() Pod
	Container() Container // only for a container
}

// Plugins are the plugins of this node.
type Plugins struct {
	config     Config
	node       Node
	adaptation *adaptation.Adaptation
	count      atomic.Int32 // registered plugins
	started    chan struct{}
	closed     chan struct{}
	close      func()
	settled    settled

	mu       sync.Mutex // guards the fields below and serializes hooks
	stages   map[string]stage
	creating map[string]Subject // known to plugins, not yet part of Node
}

// Open returns nil if no plugin can run: NRI is disabled, or there is neither a plugin to start nor
// a socket to connect to.
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
		stages: map[string]stage{}, creating: map[string]Subject{},
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
		if err := checkSocketUnused(c.SocketPath); err != nil {
			return nil, err
		}
		options = append(options, adaptation.WithSocketPath(c.SocketPath))
	} else {
		options = append(options, adaptation.WithDisabledExternalConnections())
	}
	redirectLog()
	adaptation.SetPluginRegistrationTimeout(c.RegistrationTimeout)
	adaptation.SetPluginRequestTimeout(c.RequestTimeout)
	p.adaptation, err = adaptation.New(c.Name, c.Version, p.synchronize, p.unsolicited, options...)
	if err != nil {
		return nil, fmt.Errorf("nri: %w", err)
	}
	return p, nil
}

// checkSocketUnused checks that no process listens on the socket: the adaptation would replace the
// socket of another runtime silently.
func checkSocketUnused(path string) error {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		return nil
	}
	c.Close()
	return fmt.Errorf("nri.socket_path: another process listens on %s; use a separate socket for each runtime of the node: %w", path, errdefs.ErrFailedPrecondition)
}

// Start starts the installed plugins and accepts connections. Every plugin receives the whole node
// first. Hooks wait until Start has returned.
func (p *Plugins) Start() error {
	if p == nil {
		return nil
	}
	// A plugin that connects during Start is synchronized afterwards.
	block := p.adaptation.BlockPluginSync()
	defer block.Unblock()
	if err := p.adaptation.Start(); err != nil {
		return fmt.Errorf("nri: %w", err)
	}
	close(p.started)
	return nil
}

// Close stops the plugins that berth started and accepts no more connections.
func (p *Plugins) Close() error {
	if p == nil {
		return nil
	}
	p.close()
	p.adaptation.Stop()
	return nil
}

// counter receives the number of plugins from the adaptation.
type counter struct{ *Plugins }

func (c counter) UpdatePluginCount(n int) { c.count.Store(int32(n)) } //nolint:gosec // plugins of a node

func (counter) RecordPluginInvocation(string, string, error) {}

func (counter) RecordPluginLatency(string, string, time.Duration) {}

func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}

// stage is the last step of an object's life that plugins received. The zero value means that they
// have not received the object, or that it was removed.
type stage int

const (
	unknown stage = iota
	created
	running
	stopped
)

// stageOf maps the container state in a message to the stage that plugins then know.
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

// redirectLog redirects the adaptation's log to the daemon's. The adaptation has one logger for the
// whole process.
var redirectLog = sync.OnceFunc(func() { nrilog.Set(logger{}) })

type logger struct{}

const (
	debugMessage   = "NRI message"
	problemMessage = "NRI reported a problem"
)

// Debugf logs at level trace, and Infof at debug: even the library's info messages are about its
// internal steps.
func (logger) Debugf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Trace(debugMessage)
}

func (logger) Infof(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Debug(debugMessage)
}

func (logger) Warnf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Warn(problemMessage)
}

// Errorf logs a plugin that failed to register as a warning, because the plugin connects again. A
// plugin fails to register if it starts before berth serves, or stops at that moment.
func (logger) Errorf(ctx context.Context, format string, args ...any) {
	entry := log.G(ctx).WithField("detail", fmt.Sprintf(format, args...))
	if strings.HasPrefix(format, "failed to synchronize plugin") || strings.HasPrefix(format, "failed to start external plugin") {
		entry.Warn("Failed to register NRI plugin; it can connect again")
		return
	}
	entry.Error(problemMessage)
}
