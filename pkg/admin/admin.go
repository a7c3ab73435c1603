// Package admin serves the management API (proto/berth/admin/v1), by which an operator inspects and
// controls a running daemon. It holds no state of its own: handlers and reloads belong to the
// lifecycle, pods to the router, and keys to the configuration. It owns only its drop-ins.
package admin

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/observe"
	"github.com/berth-cri/berth/pkg/overhead"
	"github.com/berth-cri/berth/pkg/probe"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// service implements the management API. Its methods may be called at any time from any goroutine.
type service struct {
	adminv1.UnimplementedAdminServer

	o       Options
	started time.Time
	dropIns dropIns
	// mu is held from before a drop-in is read until its change is applied or rolled back.
	mu sync.Mutex
}

// Register registers the API on r, which must have been made with ServerOptions.
func Register(r grpc.ServiceRegistrar, o Options) {
	adminv1.RegisterAdminServer(r, &service{o: o, started: time.Now(), dropIns: dropIns{dir: o.DropIns, vendor: o.Vendor}})
}

// Lifecycle reads and changes handlers. Errors are of a containerd/errdefs class.
type Lifecycle interface {
	Current() lifecycle.Current
	Handlers() []lifecycle.Handler
	Handler(name string) (lifecycle.Handler, error)
	Watch(ctx context.Context) <-chan lifecycle.Event
	Reload(ctx context.Context, t lifecycle.Trigger) (lifecycle.Outcome, error)
	Request(t lifecycle.Trigger)
	Cordon(ctx context.Context, name, reason, by string) error
	Uncordon(ctx context.Context, name string) error
	Drain(ctx context.Context, name, reason, by string) error
	Probe(ctx context.Context, name string, depth probe.Depth) (lifecycle.Handler, error)
	Changes(handler string) ([]lifecycle.Change, error)
}

// Rollouts promotes and aborts candidates. Errors are of a containerd/errdefs class.
type Rollouts interface {
	Promote(ctx context.Context, name string) error
	Abort(ctx context.Context, name, reason string) error
}

// Pods reads the sandboxes of all backends.
type Pods interface {
	// List returns all pods, unordered. Before they are recovered, the error is an ErrUnavailable.
	List(ctx context.Context) ([]Pod, error)
	// Find returns the place of the sandbox or container with that id or unique id prefix. The
	// error is of the class ErrNotFound, or ErrInvalidArgument for an ambiguous prefix.
	Find(id string) (Place, error)
	// Installed returns the programs that a new pod of a Definition would keep: the handler's, then
	// the one that its shim runs. The result is empty if the backend does not report them.
	Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error)
}

// Files reads the configuration on disk, strictly, without applying it.
type Files interface {
	Read(ctx context.Context) (*config.Config, error)
	// Check returns an error if the files would be rejected after a change of the drop-in at the
	// absolute path file: text becomes its content, or nil removes it.
	Check(ctx context.Context, file string, text []byte) error
}

// Pod is a pod sandbox.
type Pod struct {
	ID, Namespace, Name, UID string
	// Handler is the name of the Definition at the pod's creation.
	Handler    string
	Ready      bool
	Created    time.Time
	Containers int
	Pin        Pin
}

// Pin holds the Definition and binaries that a pod keeps from its creation.
type Pin struct {
	// Definition is nil if the backend does not report it.
	Definition *handler.Definition
	// Generation is 0 if the backend does not report it.
	Generation uint64
	// Binaries are empty if the backend does not report them.
	Binaries []handler.OwnedBinary
}

// Place is the location of a sandbox or container.
type Place struct {
	// Container is empty for the id of a sandbox.
	Sandbox, Container string
	Handler, Backend   string
}

// Options configure the service. Fields are required unless their comment allows nil or empty.
type Options struct {
	Lifecycle Lifecycle
	Rollouts  Rollouts
	Pods      Pods
	Files     Files
	// DropIns is the absolute path of the directory for handlers.
	DropIns string
	// Vendor is the directory of files that a drop-in of the same name would replace; may be empty.
	Vendor string

	// Version and Revision are the daemon's; Revision may be empty.
	Version, Revision string
	// CRISocket and AdminSocket are the paths of the served sockets.
	CRISocket, AdminSocket string
	// Recovering reports whether pods of an earlier daemon are still being recovered.
	Recovering func() bool
	// Faults returns problems outside handlers and files for an operator to fix, one line each.
	Faults func() []string
	// Unresponsive returns the unresponsive supervisors and shims, one line each.
	Unresponsive func(ctx context.Context) []string
	// Overheads measures the resources of pods outside their containers.
	Overheads *overhead.Meter
	// Failures returns the output of a handler's runtime at its last failure to start a container.
	Failures func(handler string) string
	// Starts holds the recent pod starts.
	Starts *observe.Starts
	// Images are those of the embedded backend; may be nil.
	Images Images
	// CheckpointsDir is the parent directory of pod checkpoints requested without a directory.
	CheckpointsDir string
	// CheckpointsInUse returns the checkpoint directories that restored pods still read.
	CheckpointsInUse func() []string
}
