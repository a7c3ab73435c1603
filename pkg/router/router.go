package router

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// Router serves the CRI. All methods may be called at any time from any
// goroutine.
type Router struct {
	registry *handler.Registry[Backend]
	owners   *owners
	starts   *starts
	gate     *gate
	// end ends the life of subscriptions.
	end context.CancelFunc
	// settings are what UpdateRuntimeConfig said last, nil before.
	settings *atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]
	runtime  runtimeapi.RuntimeServiceServer
	images   runtimeapi.ImageServiceServer
}

// Told is what the node says of itself beside what its backends say and the table.
type Told interface {
	// Version is the answer to the call of that name. The kubelet begins the ids of
	// containers in the API with its runtime_name, so that nothing may change it: not
	// the backend of the default handler either.
	Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error)
	// Stranded says which pods cannot be reached that no handler tells of.
	Stranded() []string
	// AdvertiseNotReady says whether handlers that are not ready are listed.
	AdvertiseNotReady() bool
	// Info is added to the verbose part.
	Info() map[string]string
}

// nothingTold is for a router whose table has nobody behind it.
type nothingTold struct{}

func (nothingTold) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "berth", RuntimeVersion: "0.0.0", RuntimeApiVersion: "v1"}, nil
}
func (nothingTold) Stranded() []string      { return nil }
func (nothingTold) AdvertiseNotReady() bool { return false }
func (nothingTold) Info() map[string]string { return nil }

// New makes a router that routes new sandboxes by the registry's current
// table. Every backend of a table must be adopted before the table is current.
func New(registry *handler.Registry[Backend]) *Router { return NewTelling(registry, nothingTold{}) }

// NewTelling is New with more to say of the node. If told is a Judge as well, it
// hears of trials.
func NewTelling(registry *handler.Registry[Backend], told Told) *Router {
	o := newOwners()
	r := routes{registry: registry}
	judge, _ := told.(Judge)
	s := &starts{routes: r, owners: o, trials: &trials{judge: judge}}
	p := &pulls{}
	settings := &atomic.Pointer[runtimeapi.UpdateRuntimeConfigRequest]{}
	life, end := context.WithCancel(context.Background())
	return &Router{
		registry: registry,
		owners:   o,
		starts:   s,
		gate:     &gate{},
		end:      end,
		settings: settings,
		runtime:  newRuntimeService(life, s, p, node{routes: r, owners: o, told: told, settings: settings}),
		images:   newImageService(r, o, p),
	}
}

// Adopt makes a backend known with all sandboxes and containers that it has.
// Call it after the backend has recovered and before SetReady. Adopting a
// backend again learns what it got meanwhile.
func (r *Router) Adopt(b Backend) { r.owners.adopt(b) }

// SetReady opens the gate: until then every RPC answers Unavailable, because an
// empty list would make the kubelet start every pod a second time.
func (r *Router) SetReady() { r.gate.open.Store(true) }

// EndStreams ends the subscriptions to events, which end by nothing else and
// would keep a server from stopping. New ones end at once.
func (r *Router) EndStreams() { r.end() }

// Owner returns the owner of a sandbox or container by its full id. It takes
// no lock and allocates nothing.
func (r *Router) Owner(id string) (*Owner, bool) {
	if o := r.owners.containers.get(id); o != nil {
		return o, true
	}
	o := r.owners.sandboxes.get(id)
	return o, o != nil
}

// Live counts the sandboxes of each handler, including handlers that no table
// has any more.
func (r *Router) Live() map[string]int { return r.owners.counts() }

// Starts tells how the starts of each handler stand that was ever asked for a
// pod, or is in the current table; sorted by name.
func (r *Router) Starts() []Starts { return r.starts.report(r.registry.Current().Names()) }

// Variants tells how the pods of each handler's variants did.
func (r *Router) Variants() []Variant { return r.starts.trials.report(r.registry.Current().Names()) }

// Register serves both CRI services on s.
func (r *Router) Register(s grpc.ServiceRegistrar) {
	s.RegisterService(r.gate.guard(&runtimeapi.RuntimeService_ServiceDesc), r.runtime)
	s.RegisterService(r.gate.guard(&runtimeapi.ImageService_ServiceDesc), r.images)
}

// runtimeService is the runtime's half of the CRI, composed of one part per
// concern. What no part has is found one level deeper, and is Unimplemented.
type runtimeService struct {
	sandboxes
	containers
	execs
	lists
	stats
	checkpoints
	events
	node
	unknownRuntimeCalls
}

type unknownRuntimeCalls struct {
	runtimeapi.UnimplementedRuntimeServiceServer
}

func newRuntimeService(life context.Context, s *starts, p *pulls, n node) runtimeapi.RuntimeServiceServer {
	r, o := s.routes, s.owners
	return &runtimeService{
		sandboxes:   sandboxes{starts: s, owners: o, pulls: p},
		containers:  containers{routes: r, owners: o, pulls: p, trials: s.trials},
		execs:       execs{owners: o},
		lists:       lists{owners: o},
		stats:       stats{owners: o},
		checkpoints: checkpoints{starts: s, owners: o},
		events:      events{owners: o, life: life},
		node:        n,
	}
}

// imageService is the images' half of the CRI.
type imageService struct {
	images
	unknownImageCalls
}

type unknownImageCalls struct {
	runtimeapi.UnimplementedImageServiceServer
}

func newImageService(r routes, o *owners, p *pulls) runtimeapi.ImageServiceServer {
	return &imageService{images: images{routes: r, owners: o, pulls: p}}
}
