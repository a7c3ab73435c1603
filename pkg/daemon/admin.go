package daemon

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/admin"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
)

// serveAdmin serves the management API. The API also answers while pods are recovered; its status
// then has the field Recovering set.
func (d *Daemon) serveAdmin(ctx context.Context, n *node) error {
	if d.options.DropIns == "" {
		return nil
	}
	server, build, files, pool := d.options.Config.Server, d.options.Build, d.options.Loader, n.remotes.pool
	options := admin.Options{
		Lifecycle: n.handlers, Rollouts: n.handlers, Pods: adminPods{n.face, n.engine}, Files: files,
		DropIns: d.options.DropIns, Vendor: d.options.Vendor,
		Version: build.Version, Revision: build.Revision, CRISocket: server.Socket, AdminSocket: server.Admin(),
		Recovering:   func() bool { return !n.face.Ready() },
		Faults:       func() []string { return slices.Concat(pool.Stranded(), labelFaults(n.labels), files.Faults()) },
		Unresponsive: n.engine.Unresponsive,
		Overheads:    n.meter,
		Failures:     n.engine.LastFailure,
		Starts:       n.starts,
		Images:       imagesOf(n.engine),

		CheckpointsDir:   filepath.Join(d.options.Config.Engine.Root, "pod-checkpoints"),
		CheckpointsInUse: n.engine.CheckpointsInUse,
	}
	// A client that connects before the mode is set is rejected because of its user id.
	l, err := d.listenFor(ctx, "management socket", server.Admin(), ownerOnly, "")
	if err != nil {
		return err
	}
	d.answerAdmin(l, options)
	return nil
}

func (d *Daemon) answerAdmin(l net.Listener, options admin.Options) {
	server := grpc.NewServer(append(admin.ServerOptions(), grpc.MaxSendMsgSize(maxMessage))...)
	admin.Register(server, options)
	d.teardown.add("management server", func(context.Context) error {
		server.Stop() // no pod depends on these calls, and watch calls may never end
		return nil
	})
	go d.answer(l, server, "the management API")
}

func imagesOf(e Engine) admin.Images {
	if store := e.Images(); store != nil {
		return store
	}
	return nil
}

// adminPods provides the router's pods to the management API.
type adminPods struct {
	router *router.Router
	engine Engine
}

func (p adminPods) List(ctx context.Context) ([]admin.Pod, error) {
	owned := map[string]handler.Owned{}
	for _, b := range p.router.Backends() {
		for _, o := range b.Inventory() {
			owned[o.Sandbox] = o
		}
	}
	listed, err := p.router.Sandboxes(ctx)
	if err != nil {
		return nil, err
	}
	pods := make([]admin.Pod, 0, len(listed))
	for _, item := range listed {
		o, known := owned[item.GetId()]
		if !known {
			continue // newer than the inventory, or removed
		}
		m := item.GetMetadata()
		pods = append(pods, admin.Pod{
			ID: item.GetId(), Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(), Handler: o.Handler,
			Ready: item.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY, Created: time.Unix(0, item.GetCreatedAt()),
			Containers: len(o.Containers), Pin: admin.Pin{Definition: o.Definition, Generation: o.Generation, Binaries: o.Binaries},
		})
	}
	return pods, nil
}

func (p adminPods) Installed(ctx context.Context, d *handler.Definition) ([]handler.OwnedBinary, error) {
	return p.engine.Installed(ctx, d)
}

func (p adminPods) Find(id string) (admin.Place, error) {
	o, err := p.router.Find(id)
	if err != nil {
		return admin.Place{}, err
	}
	at := admin.Place{Sandbox: o.Sandbox, Handler: o.Handler, Backend: o.Backend.ID()}
	if o.ID != o.Sandbox {
		at.Container = o.ID
	}
	return at, nil
}
