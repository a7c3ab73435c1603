package router

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/router/imagestores"
)

// Router serves the CRI. All methods may be called at any time from any goroutine.
type Router struct {
	*Pods
	starts *starts
	open   atomic.Bool // see SetReady
	// end cancels the subscriptions to events.
	end     context.CancelFunc
	runtime runtimeapi.RuntimeServiceServer
	images  runtimeapi.ImageServiceServer
}

// New returns a router for pods that routes new sandboxes by the registry's current table. Every
// backend of a table must be adopted before the table becomes current. outcomes may be nil.
func New(pods *Pods, report NodeReport, outcomes Outcomes) *Router {
	r := routes{registry: pods.registry}
	s := &starts{routes: r, owners: pods.owners, queues: &pods.queues, counter: &startCounter{outcomes: outcomes, counts: &pods.counts}}
	life, end := context.WithCancel(context.Background())
	return &Router{
		Pods:    pods,
		starts:  s,
		end:     end,
		runtime: newRuntimeService(life, s, node{routes: r, owners: pods.owners, report: report, settings: &pods.settings}),
		images:  &imageService{images: images{routes: r, owners: pods.owners}},
	}
}

// SetReady opens the gate. Until then every RPC returns Unavailable, because the kubelet would
// start every pod a second time after an empty list.
func (r *Router) SetReady() { r.open.Store(true) }

// Ready reports whether the gate is open.
func (r *Router) Ready() bool { return r.open.Load() }

// Sandboxes returns all sandboxes, as ListPodSandbox lists them.
func (r *Router) Sandboxes(ctx context.Context) ([]*runtimeapi.PodSandbox, error) {
	listed, err := lists{r.owners}.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	return imagestores.Decoded(listed).GetItems(), nil
}

// EndStreams ends the subscriptions to events, which would otherwise keep a server from stopping.
// New ones end at once.
func (r *Router) EndStreams() { r.end() }

// ServerOptions returns the options of the router's gRPC server. Interceptors that must see refused
// calls belong before them.
func (r *Router) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(grpcproto.Name)}),
		grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
			if !r.Ready() {
				return nil, errNotReady
			}
			return serve(ctx, req)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
			if !r.Ready() {
				return errNotReady
			}
			return serve(srv, stream)
		}),
		grpc.UnknownServiceHandler(unknownRPCs{r.starts.routes, r.owners}.serve),
	}
}

// Register serves both CRI services on s.
func (r *Router) Register(s grpc.ServiceRegistrar) {
	s.RegisterService(&runtimeapi.RuntimeService_ServiceDesc, r.runtime)
	s.RegisterService(&runtimeapi.ImageService_ServiceDesc, r.images)
}

// runtimeService is the runtime's half of the CRI, composed of one part per concern. A method that
// no part has comes from unknownRuntimeCalls, one level deeper, and returns Unimplemented.
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

func newRuntimeService(life context.Context, s *starts, n node) runtimeapi.RuntimeServiceServer {
	o := s.owners
	return &runtimeService{
		sandboxes:   sandboxes{starts: s, owners: o},
		containers:  containers{owners: o, counter: s.counter},
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

var errNotReady = status.Error(codes.Unavailable, "berth is still recovering its pods; try again in a moment")
