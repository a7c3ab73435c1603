// Package admin serves the management API (proto/berth/admin/v1): what an operator
// asks and tells a running daemon. It knows nothing by itself: handlers and
// reloads are the life cycle's, pods the router's, and keys the configuration's.
// The one thing it owns are the drop-ins that it writes.
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

// service is the management API. Its methods may be called at any time from any
// goroutine.
type service struct {
	adminv1.UnimplementedAdminServer

	o       Options
	started time.Time
	dropIns dropIns
	// mu is held from before a drop-in is read until its change is in force or
	// rolled back.
	mu sync.Mutex
}

// Register serves the API on r, which must have been made with ServerOptions.
func Register(r grpc.ServiceRegistrar, o Options) {
	adminv1.RegisterAdminServer(r, &service{o: o, started: time.Now(), dropIns: dropIns{dir: o.DropIns, vendor: o.Vendor}})
}

// Lifecycle knows and changes handlers. Errors are of a containerd/errdefs class.
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

// Rollouts decides on candidates of handlers. Errors are of a containerd/errdefs class.
type Rollouts interface {
	Promote(ctx context.Context, name string) error
	Abort(ctx context.Context, name, reason string) error
}

// Pods knows the sandboxes of all backends.
type Pods interface {
	// List returns them all, in no order. It is of the class ErrUnavailable until
	// they are known.
	List(ctx context.Context) ([]Pod, error)
	// Find returns where the sandbox or container with that id, or with an id
	// that begins so, is. The class is ErrNotFound, or ErrInvalidArgument for a
	// beginning of several.
	Find(id string) (Place, error)
	// Installed returns the programs that a new pod of a Definition would keep: the
	// handler's, then the one that a shim drives. None if the backend does not say.
	Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error)
}

// Files reads the configuration on disk, strictly, and puts nothing in force.
type Files interface {
	Read(ctx context.Context) (*config.Config, error)
	// Check returns why the files would be refused if the drop-in file, an absolute
	// path, had that text, or were not there if it is nil.
	Check(ctx context.Context, file string, text []byte) error
}

// Pod is a pod sandbox.
type Pod struct {
	ID, Namespace, Name, UID string
	// Handler is the name of the Definition that it was created with.
	Handler    string
	Ready      bool
	Created    time.Time
	Containers int
	Pin        Pin
}

// Pin is what a pod was created with and keeps.
type Pin struct {
	// Definition is nil if the backend does not say.
	Definition *handler.Definition
	// Generation is 0 if the backend does not say.
	Generation uint64
	// Binaries are empty if the backend does not say.
	Binaries []handler.OwnedBinary
}

// Place is whose a sandbox or container is.
type Place struct {
	// Container is empty if the id is a sandbox's.
	Sandbox, Container string
	Handler, Backend   string
}

// Options are what the service needs. All are required but those that say otherwise.
type Options struct {
	Lifecycle Lifecycle
	Rollouts  Rollouts
	Pods      Pods
	Files     Files
	// DropIns is the directory where handlers are written to, an absolute path.
	DropIns string
	// Vendor is the directory whose files one of the same name in DropIns
	// replaces; may be empty.
	Vendor string

	// Version and Revision are the daemon's; Revision may be empty.
	Version, Revision string
	// CRISocket and AdminSocket are the paths that are served.
	CRISocket, AdminSocket string
	// Recovering is whether pods of an earlier daemon are still being taken over.
	Recovering func() bool
	// Faults are what an operator should mend beside handlers and files, a line each.
	Faults func() []string
	// Unresponsive are supervisors and shims that do not answer, a line each.
	Unresponsive func(ctx context.Context) []string
	// Overheads knows what pods use beyond their containers.
	Overheads *overhead.Meter
	// Failures is what a handler's runtime wrote when it last could not start a container.
	Failures func(handler string) string
	// Starts knows how pods came up.
	Starts *observe.Starts
	// Images are those of the embedded backend; may be nil.
	Images Images
	// CheckpointsDir is the parent of checkpoints of pods that are written without a directory.
	CheckpointsDir string
	// CheckpointsInUse returns the directories of checkpoints that restored pods still read.
	CheckpointsInUse func() []string
}
