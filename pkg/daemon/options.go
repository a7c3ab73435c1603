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

// Engine is the embedded backend as the daemon needs it.
type Engine interface {
	router.Backend
	// SelfCheck is not called before Recover has returned.
	probe.SelfChecker
	// Recover takes over what an earlier daemon left. Of the other methods only those
	// named Capabilities, Overhead and Unresponsive are called before it returns.
	Recover(ctx context.Context) error
	// Capabilities tells what handlers can do for pods.
	Capabilities(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table
	// Unresponsive has a line for each process of pods that does not answer.
	Unresponsive(ctx context.Context) []string
	// Installed tells the programs that a new pod of a handler would keep.
	Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error)
	// Images are the engine's own; nil if it has none.
	Images() *image.Store
	// ServeContainerdAPI shows images and pods to agents until ctx ends. It is called
	// after Recover.
	ServeContainerdAPI(ctx context.Context, l net.Listener, options ...grpc.ServerOption) error
	// LastFailure is what a handler's runtime wrote when it last could not start a container.
	LastFailure(handler string) string
	// Overhead reads what ready pods have beyond their containers, by handler.
	Overhead(ctx context.Context) (map[string]overhead.Pods, error)
	// CheckpointsInUse returns the directories of checkpoints that restored pods still read.
	CheckpointsInUse() []string
	// CheckpointDurations is the metric of checkpoints and restores of pods.
	CheckpointDurations() prometheus.Collector
	// Close ends what the engine does by itself, and lets every pod run.
	Close(ctx context.Context) error
}

// Options are what a daemon needs. Config and Loader are required.
type Options struct {
	// Config is the validated configuration. It may be the last accepted one.
	Config *config.Config
	// Build is reported by Version, metrics and traces; zero is this binary's.
	Build Build
	// StopTimeout bounds Stop; zero is DefaultStopTimeout.
	StopTimeout time.Duration
	// NotifySocket is where systemd listens (NOTIFY_SOCKET); empty is nowhere.
	NotifySocket string
	// Watchdog is how often systemd wants to hear that the daemon is alive
	// (WATCHDOG_USEC); zero is never.
	Watchdog time.Duration
	// Loader reads the configuration again for a reload.
	Loader Loader
	// DropIns is where the management API writes handlers to, and Vendor the
	// directory whose files those would replace. Without DropIns there is no
	// management API.
	DropIns, Vendor string
	// Apply puts in force what a reloaded configuration says about the process
	// itself, such as its log; nil is nothing. It is also called after a reload
	// that failed, with the configuration that stays.
	Apply func(ctx context.Context, cfg *config.Config)
	// NewProber makes what finds out whether handlers can run pods, on an engine that may
	// be asked to run some from when recovered is closed; nil is what asks the machine.
	NewProber func(e Engine, recovered <-chan struct{}) Prober
	// NewEngine opens the engine; nil is the real one.
	NewEngine func(ctx context.Context, cfg *config.Config, b Build, h *Handlers) (Engine, error)
}

// Prober finds out whether handlers can run pods, and knows what self-check pods did.
type Prober interface {
	lifecycle.Prober
	Proof(d *handler.Definition, rt *probe.Runtime) probe.Proof
	Runs() map[string]probe.SelfCheckRuns
}

// Loader reads the configuration again, and says what would come of a change.
type Loader interface {
	lifecycle.Loader
	admin.Files
	Faults() []string // what an operator should mend, a line each
}

// DefaultStopTimeout is well below the time after which systemd kills.
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
	// One for all, so that a runtime is asked once.
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

// Daemon is the running program. Start and Stop may be called from any
// goroutine, in any order, and again: the first call does it, later ones return
// what it returned.
type Daemon struct {
	options Options
	notify  notifier
	failed  chan error // what ends Run before its context does

	// life ends when Stop is called, also while Start is at work.
	life context.Context
	end  context.CancelFunc

	// mu is held by Start and Stop as long as they work.
	mu                sync.Mutex
	started, stopped  bool
	startErr, stopErr error

	teardown teardown
	handlers *lifecycle.Manager // guarded by mu; nil before Start has made it

	// wished are reloads that somebody asked for, also while Start is at work.
	wished chan lifecycle.Trigger
}

// maxWished is how many reloads may wait to be passed on. One more is asked for already.
const maxWished = 16

// fail ends Run.
func (d *Daemon) fail(err error) {
	select {
	case d.failed <- err:
	default: // it is ending already
	}
}

// teardown is a stack of named steps that undo what was set up. One goroutine
// at a time may use it.
type teardown struct {
	steps []step
}

type step struct {
	name string
	undo func(context.Context) error
}

// add puts a step on the stack.
func (t *teardown) add(name string, undo func(context.Context) error) {
	t.steps = append(t.steps, step{name, undo})
}

// run takes the steps, last one first. A step that fails is logged by its name,
// and the others still run.
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

// node is what serves the pods of this node: each part complete when it is made, from
// those above it.
type node struct {
	registry  *handler.Registry[router.Backend]
	pods      *router.Pods
	engine    Engine
	recovered chan struct{} // closed when the engine may be asked
	prober    Prober
	remotes   *remotes
	handlers  *lifecycle.Manager
	meter     *overhead.Meter
	labels    *featurefile.Keeper // nil without a file for them
	face      *router.Router
	starts    *observe.Starts
}
