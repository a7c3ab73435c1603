package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/remote"
	"github.com/berth-cri/berth/pkg/router"
)

// newLifecycle creates the manager of the handlers, and with it the first table, with routes to the
// engine and to CRI daemons.
func (d *Daemon) newLifecycle(ctx context.Context, n *node, known *Handlers) (*lifecycle.Manager, error) {
	m, err := lifecycle.New(ctx, lifecycle.Options{
		Config: d.options.Config, Loader: d.options.Loader, Prober: checker{n.prober, n.remotes.pool, n.engine.Images()}, PodCounter: podCounter{n.pods},
		Publisher: &tables{n.engine, n.remotes, n.registry, known}, Dir: d.options.Config.Engine.Root,
		Announcer: announcer{d.notify, d.options.Apply}, CapabilitySource: capabilitySource{n.engine, n.prober, n.remotes.pool},
	})
	if err != nil {
		return nil, err
	}
	d.teardown.add("handlers", func(context.Context) error { return m.Close() })
	return m, nil
}

// followSnapshotters probes the handlers of a proxy snapshotter when it stops or resumes answering,
// until the daemon ends.
func (d *Daemon) followSnapshotters(m *lifecycle.Manager, images *image.Store) {
	for {
		select {
		case <-images.SnapshotterChanges():
		case <-d.life.Done():
			return
		}
		for _, h := range m.Handlers() {
			name := cmp.Or(h.Definition.Snapshotter, d.options.Config.Engine.Snapshotter)
			if _, proxied := d.options.Config.Snapshotters[name]; !proxied || !h.Configured {
				continue
			}
			if _, err := m.Probe(d.life, h.Definition.Name, probe.Look); err != nil && d.life.Err() == nil {
				log.G(d.life).WithError(err).WithField("handler", h.Definition.Name).Warn("Failed to probe handler after its snapshotter changed")
			}
		}
	}
}

// Reload requests a reload without waiting for it. A request during Start runs after Start.
func (d *Daemon) Reload(t lifecycle.Trigger) {
	select {
	case d.requested <- t:
	default: // maxRequested requests are waiting
	}
}

// forwardReloads passes reload requests to the manager until the daemon ends.
func (d *Daemon) forwardReloads(m *lifecycle.Manager) {
	for {
		select {
		case t := <-d.requested:
			m.Request(t)
		case <-d.life.Done():
			return
		}
	}
}

// tables turns plans into tables of routes.
type tables struct {
	engine   router.Backend
	remotes  *remotes
	registry *handler.Registry[router.Backend]
	known    *Handlers
}

// Publish implements lifecycle.Publisher. No step after the swap can fail.
func (t *tables) Publish(p *lifecycle.Plan) error {
	t.remotes.members.Lock()
	defer t.remotes.members.Unlock()
	table, err := t.tableOf(p)
	if err != nil {
		return err
	}
	if err := t.remotes.pool.Record(definitionsOf(p)); err != nil {
		return err
	}
	t.registry.Swap(table)
	t.known.use(p)
	t.remotes.use(p)
	return nil
}

func (t *tables) tableOf(p *lifecycle.Plan) (*handler.Table[router.Backend], error) {
	routes := make([]handler.Route[router.Backend], 0, len(p.Entries))
	for _, e := range p.Entries {
		b, err := t.remotes.backend(e.Definition, t.engine)
		if err != nil {
			return nil, err
		}
		routes = append(routes, handler.Route[router.Backend]{
			Backend: b, Definition: e.Definition, Candidate: e.Next, State: e.State, Generation: e.Since,
		})
	}
	return handler.NewTable(p.Generation, p.Default, routes)
}

// podCounter counts pods, including those being started.
type podCounter struct{ pods *router.Pods }

func (c podCounter) Pods() map[string]int {
	all := c.pods.SandboxCounts()
	for _, s := range c.pods.Starts() {
		if starting := s.Running + s.Queued; starting > 0 {
			all[s.Handler] += starting
		}
	}
	return all
}

// nodeReport implements router.NodeReport: the node's own part of CRI answers.
type nodeReport struct {
	*lifecycle.Manager
	engine  Engine
	remotes *remotes
}

func (t nodeReport) Stranded() []string { return t.remotes.pool.Stranded() }

// Version implements router.NodeReport. The engine exists even if no handler uses it.
func (t nodeReport) Version(ctx context.Context, req *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return t.engine.Version(ctx, req)
}

func (t nodeReport) AdvertiseNotReady() bool {
	return t.Current().Config.Handlers.AdvertiseNotReady
}

// handlersInfo is the part of a verbose Status about handlers.
type handlersInfo struct {
	Generation uint64        `json:"generation"`
	Digest     string        `json:"digest"`
	Default    string        `json:"default"`
	Handlers   []handlerInfo `json:"handlers"`
}

type handlerInfo struct {
	Name   string        `json:"name"`
	State  handler.Phase `json:"state"`
	Reason string        `json:"reason,omitempty"`
	Digest string        `json:"digest"`
	Origin string        `json:"origin,omitempty"`
	Since  uint64        `json:"since"`
	Pods   int           `json:"pods"`
	// Rollout is that of the handler's candidate, if it has one.
	Rollout *rollout.Status `json:"rollout,omitempty"`
	// Capabilities are the handler's. Another berth reads them here if this one is its backend.
	Capabilities capability.Table `json:"capabilities,omitzero"`
}

func (t nodeReport) Info() map[string]string {
	current := t.Current()
	info := handlersInfo{Generation: current.Generation, Digest: current.Digest, Default: current.Default}
	for _, h := range t.Handlers() {
		info.Handlers = append(info.Handlers, handlerInfo{
			Name: h.Definition.Name, State: h.State.Phase, Reason: h.State.Reason, Digest: h.Digest,
			Origin: h.Definition.Origin, Since: h.Since, Pods: h.Pods, Rollout: h.Rollout, Capabilities: h.Capabilities,
		})
	}
	text, err := json.Marshal(info)
	if err != nil {
		text = []byte(err.Error())
	}
	return map[string]string{"handlers": string(text)}
}

// announcer notifies the service manager of reloads, and applies the settings outside the handlers.
type announcer struct {
	notify notifier
	apply  func(ctx context.Context, cfg *config.Config) // may be nil
}

func (a announcer) Reloading(ctx context.Context) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic("daemon: there is always a monotonic clock: " + err.Error())
	}
	a.notify.send(ctx, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", reloading, now.Nano()/1000))
}

func (a announcer) Reloaded(ctx context.Context, c lifecycle.Current, handlers []lifecycle.Handler) {
	if a.apply != nil {
		a.apply(ctx, c.Config)
	}
	a.notify.send(ctx, ready+"\nSTATUS="+statusLine(c, handlers))
}

// statusLine returns the text for "systemctl status". Pure.
func statusLine(c lifecycle.Current, handlers []lifecycle.Handler) string {
	var names []string
	for _, h := range handlers {
		name := h.Definition.Name
		if h.State.Phase != handler.Ready {
			name += " (" + string(h.State.Phase) + ")"
		}
		names = append(names, name)
	}
	line := fmt.Sprintf("Generation %d, handlers: %s", c.Generation, strings.Join(names, ", "))
	if c.Last != nil && c.Last.Error != nil {
		line += "; configuration rejected: " + strings.Join(strings.Fields(c.Last.Problems[0]), " ")
	}
	return line
}

// capabilitySource gets a handler's capabilities from the backend that runs its pods.
type capabilitySource struct {
	engine Engine
	prober Prober
	pool   *remote.Pool
}

func (s capabilitySource) Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime) capability.Table {
	if d.Type == handler.CRI {
		return s.pool.Capabilities(ctx, d)
	}
	if rt == nil {
		return capability.Table{}
	}
	return s.engine.Capabilities(ctx, d, rt, s.prober.Proof(d, rt))
}
