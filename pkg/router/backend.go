// Package router serves the daemon's CRI. Every RPC is routed here and nowhere else.
//
// A new sandbox goes to its handler's backend in the current table. The router records that backend
// as the owner, and routes every later call about the sandbox or its containers to the owner, even
// if the table has changed since. Owners are not stored: they come from the backends' inventories,
// so a crash leaves no second source of truth to repair.
//
// Lists ask all backends at once and merge the answers; a single backend's answer is passed on
// unchanged. A call about images goes to the store of the handler that it names. A pull without a
// handler goes to the store of its pod, and any other call without a handler covers all stores.
// Calls about the node go to the default handler's backend, and the answer is completed from the
// other backends; the list of handlers comes from the table, and Version from NodeReport.
//
// Finding an owner by its full ID takes no lock and allocates nothing. The package starts no
// background work and stores nothing on disk.
package router

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// Backend runs pods. It serves the whole CRI for its sandboxes and returns Unimplemented (by
// embedding the generated servers) for methods that it lacks.
//
// All methods may be called at any time from any goroutine. The context of RunPodSandbox,
// RestorePod and calls about images carries the Definition of their handler
// (handler.DefinitionFrom); for RunPodSandbox and RestorePod it also carries the generation
// (handler.GenerationFrom). The context of a call by ID carries neither, because the backend stored
// both with the sandbox. IDs in requests are full IDs. A request may be shared with other backends
// during a list call and must not be changed. The router calls the unary form of lists, also for
// clients of the streaming form.
//
// Errors are of a containerd/errdefs class, or gRPC status errors.
type Backend interface {
	runtimeapi.RuntimeServiceServer
	runtimeapi.ImageServiceServer

	// ID identifies the backend in this daemon, also in logs and errors. It never changes.
	ID() string
	// Inventory returns all sandboxes of the backend, including partially created ones that wait
	// for removal: everything that a list shows or a call by ID can refer to. It answers from
	// memory and must not wait for a call of the router.
	Inventory() []handler.Owned
	// Live reports whether a sandbox counts towards max_pods: from READY until it is completely
	// stopped or has died. It answers from memory.
	Live(sandbox string) bool
}

// Responder is a Backend that may be slow to answer, or not answer at all.
type Responder interface {
	// Responsive reports whether the backend currently answers in time. A call to several backends
	// that can do without this one skips it while it is unresponsive.
	Responsive() bool
}

func responsive(b Backend) bool {
	l, ok := b.(Responder)
	return !ok || l.Responsive()
}

// Encoder is a Backend that keeps its lists in encoded form.
type Encoder interface {
	// EncodedSandboxes returns the encoded answer of ListPodSandbox.
	EncodedSandboxes(*runtimeapi.PodSandboxFilter) ([]byte, error)
	// EncodedContainers returns the encoded answer of ListContainers.
	EncodedContainers(*runtimeapi.ContainerFilter) ([]byte, error)
}
