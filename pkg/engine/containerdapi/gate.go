package containerdapi

import (
	"context"
	"io"
	"slices"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"
	"golang.org/x/sync/semaphore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// gate checks every call: whether it is allowed, which namespace of the store it uses, and how many
// run at once.
type gate struct {
	to Audience
	// working limits the calls that use the processors at once: the node's processors are for pods.
	working *semaphore.Weighted
	// open limits open streams and waiting calls.
	open *semaphore.Weighted
}

const (
	// maxWorking is the limit of gate.working.
	maxWorking = 4
	// maxOpen is the limit of gate.open.
	maxOpen = 512
)

func newGate(to Audience) *gate {
	return &gate{to: to, working: semaphore.NewWeighted(maxWorking), open: semaphore.NewWeighted(maxOpen)}
}

func (g *gate) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, serve grpc.UnaryHandler) (any, error) {
	ctx, err := g.admit(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	if err := checkFields(req); err != nil {
		return nil, err
	}
	if waits[info.FullMethod] {
		if !g.open.TryAcquire(1) {
			return nil, errOpen
		}
		defer g.open.Release(1)
		return serve(ctx, req)
	}
	if err := g.working.Acquire(ctx, 1); err != nil {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer g.working.Release(1)
	return serve(ctx, req)
}

func (g *gate) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, serve grpc.StreamHandler) error {
	ctx, err := g.admit(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	if !g.open.TryAcquire(1) {
		return errOpen
	}
	defer g.open.Release(1)
	named := inNamespace{ss, ctx}
	if kinds[shortName(info.FullMethod)] != reads || idle[info.FullMethod] {
		return serve(srv, named)
	}
	// A handler works between its messages. While it sends a message, it waits for the client.
	if err := g.working.Acquire(ctx, 1); err != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	defer g.working.Release(1)
	return serve(srv, working{named, g.working})
}

var errOpen = status.Errorf(codes.ResourceExhausted, "%d streams and waiting calls are open; close some", maxOpen)

// working is a stream that releases its slot while it sends.
type working struct {
	inNamespace
	slots *semaphore.Weighted
}

func (s working) SendMsg(m any) error {
	s.slots.Release(1)
	err := s.inNamespace.SendMsg(m)
	// gate.stream releases a slot when the handler returns, so one must be held.
	if again := s.slots.Acquire(context.WithoutCancel(s.ctx), 1); again != nil {
		return again
	}
	return err
}

// checkFields rejects requests without fields that containerd's own services require.
func checkFields(req any) error {
	lacks := ""
	switch r := req.(type) {
	case *imagesapi.CreateImageRequest:
		if r.GetImage().GetTarget() == nil {
			lacks = "image.target"
		}
	case *imagesapi.UpdateImageRequest:
		if r.GetImage() == nil {
			lacks = "image"
		}
	case *contentapi.UpdateRequest:
		if r.GetInfo() == nil {
			lacks = "info"
		}
	case interface{ GetResource() *leasesapi.Resource }:
		if r.GetResource() == nil {
			lacks = "resource"
		}
	}
	if lacks != "" {
		return status.Errorf(codes.InvalidArgument, "the request has no %s", lacks)
	}
	return nil
}

type inNamespace struct {
	grpc.ServerStream
	ctx context.Context //nolint:containedctx // a stream's context belongs to the stream
}

func (s inNamespace) Context() context.Context { return s.ctx }

// admit rejects calls that are not allowed, and puts the store's namespace into the context.
func (g *gate) admit(ctx context.Context, full string) (context.Context, error) {
	asked := ""
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		if values := md.Get(namespaces.GRPCHeader); len(values) > 0 {
			asked = values[0]
		}
	}
	own := asked == Namespace || g.to == Shims && asked == shim.Namespace
	if err := allowed(full, asked, own, g.to); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(borrowedLogs, func(service string) bool { return strings.HasPrefix(full, service) }) {
		ctx = unlogged(ctx)
	}
	switch {
	case own:
		ctx = namespaces.WithNamespace(ctx, disk.Namespace)
	case asked == disk.Namespace:
		// The store has nothing in Namespace, so the client finds an empty namespace.
		ctx = namespaces.WithNamespace(ctx, Namespace)
	case asked != "":
		ctx = namespaces.WithNamespace(ctx, asked)
	}
	return ctx, nil
}

// ours reports whether a call uses berth's namespace.
func ours(ctx context.Context) (bool, error) {
	ns, err := namespaces.NamespaceRequired(ctx)
	return ns == disk.Namespace, err
}

// kind classifies methods.
type kind int

const (
	unknown kind = iota
	reads
	writes    // images, content or leases
	publishes // events
	ofPods    // only the CRI may do these
	ofLayers  // only the CRI and pulls do these
	ofNames   // these would change the namespaces
)

// kinds has the kind of each served method, by "service/Method".
var kinds = map[string]kind{
	"version.Version/Version": reads,

	"introspection.Introspection/Plugins": reads, "introspection.Introspection/Server": reads, "introspection.Introspection/PluginInfo": reads,

	"namespaces.Namespaces/Get": reads, "namespaces.Namespaces/List": reads,
	"namespaces.Namespaces/Create": ofNames, "namespaces.Namespaces/Update": ofNames, "namespaces.Namespaces/Delete": ofNames,

	"images.Images/Get": reads, "images.Images/List": reads,
	"images.Images/Create": writes, "images.Images/Update": writes, "images.Images/Delete": writes,

	"content.Content/Info": reads, "content.Content/List": reads, "content.Content/Read": reads,
	"content.Content/Status": reads, "content.Content/ListStatuses": reads,
	"content.Content/Update": writes, "content.Content/Delete": writes, "content.Content/Write": writes, "content.Content/Abort": writes,

	"leases.Leases/List": reads, "leases.Leases/ListResources": reads,
	"leases.Leases/Create": writes, "leases.Leases/Delete": writes, "leases.Leases/AddResource": writes, "leases.Leases/DeleteResource": writes,

	"transfer.Transfer/Transfer": writes, "streaming.Streaming/Stream": writes,

	"diff.Diff/Apply": ofLayers, "diff.Diff/Diff": ofLayers,

	"snapshots.Snapshots/Stat": reads, "snapshots.Snapshots/List": reads, "snapshots.Snapshots/Mounts": reads, "snapshots.Snapshots/Usage": reads,
	"snapshots.Snapshots/Prepare": ofLayers, "snapshots.Snapshots/View": ofLayers, "snapshots.Snapshots/Commit": ofLayers,
	"snapshots.Snapshots/Remove": ofLayers, "snapshots.Snapshots/Update": ofLayers, "snapshots.Snapshots/Cleanup": ofLayers,

	"containers.Containers/Get": reads, "containers.Containers/List": reads, "containers.Containers/ListStream": reads,
	"containers.Containers/Create": ofPods, "containers.Containers/Update": ofPods, "containers.Containers/Delete": ofPods,

	"tasks.Tasks/Get": reads, "tasks.Tasks/List": reads, "tasks.Tasks/ListPids": reads, "tasks.Tasks/Metrics": reads, "tasks.Tasks/Wait": reads,
	"tasks.Tasks/Create": ofPods, "tasks.Tasks/Start": ofPods, "tasks.Tasks/Delete": ofPods, "tasks.Tasks/DeleteProcess": ofPods,
	"tasks.Tasks/Kill": ofPods, "tasks.Tasks/Exec": ofPods, "tasks.Tasks/ResizePty": ofPods, "tasks.Tasks/CloseIO": ofPods,
	"tasks.Tasks/Pause": ofPods, "tasks.Tasks/Resume": ofPods, "tasks.Tasks/Checkpoint": ofPods, "tasks.Tasks/Update": ofPods,

	"events.Events/Subscribe": reads, "events.Events/Publish": publishes, "events.Events/Forward": publishes,

	"health.Health/Check": reads, "health.Health/List": reads, "health.Health/Watch": reads,
}

// waits are calls that may take long. They count as open, not as working.
var waits = map[string]bool{
	"/containerd.services.tasks.v1.Tasks/Wait":           true,
	"/containerd.services.transfer.v1.Transfer/Transfer": true,
	"/containerd.services.images.v1.Images/Create":       true,
	"/containerd.services.images.v1.Images/Update":       true,
	"/containerd.services.images.v1.Images/Delete":       true,
	"/containerd.services.content.v1.Content/Delete":     true,
	"/containerd.services.leases.v1.Leases/Delete":       true,
}

// idle are streams with handlers that mostly wait.
var idle = map[string]bool{
	"/containerd.services.events.v1.Events/Subscribe": true,
	"/grpc.health.v1.Health/Watch":                    true,
}

// borrowedLogs are services of containerd's packages that log each failure in addition to returning
// it: a client could fill the journal with them.
var borrowedLogs = []string{"/containerd.services.content.", "/containerd.services.snapshots.", "/containerd.services.leases.", "/containerd.services.introspection.", "/containerd.services.streaming."}

// noLog discards its messages.
var noLog = func() *log.Entry {
	l := logrus.New()
	l.SetOutput(io.Discard)
	return logrus.NewEntry(l)
}()

// unlogged discards messages that are logged with the context.
func unlogged(ctx context.Context) context.Context { return log.WithLogger(ctx, noLog) }

// allowed returns an error if a method may not be called. Pure.
func allowed(full, namespace string, own bool, to Audience) error {
	switch kinds[shortName(full)] {
	case writes:
		if namespace != "" && !own {
			return status.Errorf(codes.PermissionDenied, "namespace %.100q is always empty: berth keeps images in %s", namespace, Namespace)
		}
	case publishes:
		if to != Shims {
			return status.Errorf(codes.PermissionDenied, "only berth and its shims publish events")
		}
	case ofPods:
		return status.Errorf(codes.PermissionDenied, "%s is not allowed: pods belong to the CRI; use kubectl or crictl", shortName(full))
	case ofLayers:
		return status.Errorf(codes.PermissionDenied, "%s is not allowed: snapshots belong to pods and the CRI; run images with kubectl or crictl, and read the files of a container with Snapshots/Mounts, those of an image in its content", shortName(full))
	case ofNames:
		return status.Errorf(codes.PermissionDenied, "%s is not allowed: berth has one namespace, %s", shortName(full), Namespace)
	case unknown:
		return status.Errorf(codes.Unimplemented, "method %.200s is not implemented", full)
	case reads:
	}
	return nil
}

// shortName is "images.Images/Get" for "/containerd.services.images.v1.Images/Get".
func shortName(full string) string {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	parts := strings.Split(service, ".")
	if len(parts) < 3 {
		return full
	}
	return parts[len(parts)-3] + "." + parts[len(parts)-1] + "/" + method
}

// Namespace is the namespace where Kubernetes' agents look for pods and images.
const Namespace = "k8s.io"

// Audience is the kind of a server's clients.
type Audience int

// The audiences.
const (
	// Agents are programs of the node.
	Agents Audience = iota
	// Shims are the shims that berth has started. They may also use their own namespace, find
	// self-check pods, and publish events.
	Shims
)
