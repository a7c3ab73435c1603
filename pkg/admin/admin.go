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
