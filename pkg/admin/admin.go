// Package admin serves the management API (proto/berth/admin/v1): what an operator
// asks and tells a running daemon. It knows nothing by itself: handlers and
// reloads are the life cycle's, pods the router's, and keys the configuration's.
// The one thing it owns are the drop-ins that it writes.
package admin

import (
	"sync"
	"time"

	"google.golang.org/grpc"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Service is the management API. Its methods may be called at any time from any
// goroutine.
type Service struct {
	status
	handlers
	operations
	registrations
	configuration
	pods
	starts
	images
	unknownCalls
}

// unknownCalls are below the others, whose methods win.
type unknownCalls struct {
	adminv1.UnimplementedAdminServer
}

// New checks the options.
func New(o Options) (*Service, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d := dropIns{dir: o.DropIns, vendor: o.Vendor}
	v := view{life: o.Lifecycle, dropIns: d}
	return &Service{
		status:        status{view: v, o: o, started: time.Now()},
		handlers:      handlers{view: v, overheads: o.Overheads, failures: o.Failures},
		operations:    operations{view: v, pods: o.Pods},
		registrations: registrations{view: v, files: o.Files, mu: &sync.Mutex{}},
		configuration: configuration{life: o.Lifecycle, files: o.Files},
		pods:          pods{pods: o.Pods, life: o.Lifecycle},
		starts:        starts{life: o.Lifecycle, known: o.Starts},
		images:        images{life: o.Lifecycle, known: o.Images},
	}, nil
}

// Register serves the API on s, which must have been made with ServerOptions.
func (s *Service) Register(r grpc.ServiceRegistrar) { adminv1.RegisterAdminServer(r, s) }
