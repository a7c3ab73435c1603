package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/featurefile"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/router"
)

// Engine is the embedded backend, as far as the daemon uses it.
type Engine interface {
	router.Backend
	// SelfCheck is not called before Recover has returned.
	probe.SelfChecker
	// Recover takes over the pods of an earlier daemon. Until it returns, only these are called:
	// Capabilities, CheckpointsInUse, Close, Images, LastFailure and Unresponsive.
	Recover(ctx context.Context) error
	// Capabilities returns the capabilities of a handler.
	Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table
	// Unresponsive returns a line for each unresponsive process of pods.
	Unresponsive(ctx context.Context) []string
	// Installed returns the programs that a new pod of a handler would keep.
	Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error)
	// Images returns the engine's image store, or nil.
	Images() *image.Store
	// ServeContainerdAPI serves images and pods to agents until ctx ends. It is called after
	// Recover.
	ServeContainerdAPI(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error
	// LastFailure returns the output of a handler's runtime at its last failure to start a
	// container.
	LastFailure(handler string) string
	// Overhead returns the resources of ready pods outside their containers, by handler.
	Overhead(ctx context.Context) (map[string]overhead.Pods, error)
	// CheckpointsInUse returns the checkpoint directories that restored pods still read.
	CheckpointsInUse() []string
	// CheckpointDurations returns the metric of checkpoints and restores of pods.
	CheckpointDurations() prometheus.Collector
	// Close ends the engine's background work. All pods keep running.
	Close(ctx context.Context) error
}

// Options configure a daemon. Config and Loader are required.
type Options struct {
	// Config is the validated configuration. It may be the last accepted one.
	Config *config.Config
	// Build is reported by Version, metrics and traces; zero means this binary's.
	Build Build
	// StopTimeout bounds Stop; zero means DefaultStopTimeout.
	StopTimeout time.Duration
	// NotifySocket is the socket of systemd (NOTIFY_SOCKET); empty means none.
	NotifySocket string
	// Watchdog is the watchdog interval of systemd (WATCHDOG_USEC); zero means none.
	Watchdog time.Duration
	// Loader reads the configuration for a reload.
	Loader Loader
	// DropIns is the directory for handlers written by the management API; empty disables the API.
	// Vendor is the directory of files that a drop-in of the same name would replace.
	DropIns, Vendor string
	// Apply applies the process settings of a reloaded configuration, such as its log; may be nil.
	// After a failed reload it is called with the configuration that stays.
	Apply func(ctx context.Context, cfg *config.Config)
	// NewProber makes the prober of handlers. The engine runs self-check pods once recovered is
	// closed. Nil means a prober of this machine.
	NewProber func(e Engine, recovered <-chan struct{}) Prober
	// NewEngine opens the engine; nil means the real one.
	NewEngine func(ctx context.Context, cfg *config.Config, b Build, h *Handlers) (Engine, error)
}

// Prober checks whether handlers can run pods, and reports the results of self-check pods.
type Prober interface {
	lifecycle.Prober
	Proof(d *handler.Definition, rt *probe.Runtime) probe.Proof
	Runs() map[string]probe.SelfCheckRuns
}

// Loader reads the configuration again, and checks planned changes.
type Loader interface {
	lifecycle.Loader
	admin.Files
	Faults() []string // problems that an operator must correct, one line each
}

// DefaultStopTimeout is well below the timeout after which systemd kills the daemon.
const DefaultStopTimeout = 15 * time.Second

func (o *Options) complete() error {
	if o.Config == nil || o.Loader == nil {
		return errors.New("daemon: Options.Config or Options.Loader is missing")
	}
	if o.StopTimeout < 0 {
		return fmt.Errorf("daemon: Options.StopTimeout %s is negative", o.StopTimeout)
	}
	if o.Watchdog < 0 {
		return fmt.Errorf("daemon: Options.Watchdog %s is negative", o.Watchdog)
	}
	o.StopTimeout = cmp.Or(o.StopTimeout, DefaultStopTimeout)
	if o.Build == (Build{}) {
		o.Build = ThisBuild()
	}
	// One prober is shared, so that each runtime is probed once.
	prober := probe.New(shim.Protocol{}, o.Config.SearchPath...)
	if o.NewProber == nil {
		o.NewProber = func(e Engine, recovered <-chan struct{}) Prober {
			return probe.NewSelfChecks(probe.NewChecker(prober), e, recovered)
		}
	}
	if o.NewEngine == nil {
		o.NewEngine = engineAsking(prober)
	}
	return nil
}

// Daemon is the running program. Start and Stop may be called from any goroutine, in any order, and
// repeatedly: only the first call acts, later ones return its result.
type Daemon struct {
	options Options
	notify  notifier
	failed  chan error // an error that ends Run before its context does

	// life ends when Stop is called, also during Start.
	life context.Context
	end  context.CancelFunc

	// mu is held during Start and Stop.
	mu                sync.Mutex
	started, stopped  bool
	startErr, stopErr error

	teardown teardown
	handlers *lifecycle.Manager // guarded by mu; nil before Start has made it

	// requested are reloads that were requested, also during Start.
	requested chan lifecycle.Trigger
}

// maxRequested bounds the waiting reload requests. More requests would have no further effect.
const maxRequested = 16

// fail ends Run.
func (d *Daemon) fail(err error) {
	select {
	case d.failed <- err:
	default: // Run is already ending
	}
}

// teardown is a stack of named steps that undo the setup. Only one goroutine at a time may use it.
type teardown struct {
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

func (t *teardown) add(name string, undo func(context.Context) error) {
	t.steps = append(t.steps, step{name, undo})
}

// run runs the steps, last one first. A failed step is logged by its name, and the others still
// run.
func (t *teardown) run(ctx context.Context) error {
	var errs []error
	for _, s := range slices.Backward(t.steps) {
		if err := s.undo(ctx); err != nil {
			log.G(ctx).WithError(err).WithField("step", s.name).Warn("Shutdown step failed")
			errs = append(errs, fmt.Errorf("stop %s: %w", s.name, err))
		}
	}
	t.steps = nil
	return errors.Join(errs...)
}

// node serves the pods of this node. Each field is complete when it is set, and depends only on
// those above it.
type node struct {
	registry  *handler.Registry[router.Backend]
	pods      *router.Pods
	engine    Engine
	recovered chan struct{} // closed once Recover has returned
	prober    Prober
	remotes   *remotes
	handlers  *lifecycle.Manager
	meter     *overhead.Meter
	labels    *featurefile.Keeper // nil if no file is configured
	face      *router.Router
	starts    *observe.Starts
}
