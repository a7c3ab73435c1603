// Package router is the CRI face of the daemon. Every RPC is routed here and
// nowhere else.
//
// A new sandbox goes to the backend that the current table has for its handler.
// Its owner is recorded then, and every later call about the sandbox or one of
// its containers goes to that owner, whatever the table says by then: that is
// the pin. Owners are not stored; they are what the backends say they have
// (Inventory), so there is no second truth to repair after a crash.
//
// Lists ask every backend at once and merge the answers; with one backend the
// answer is passed on as it is. Images go by the handler that they name; a pull
// without one goes by its pod, and everything else is about all stores. What is
// about the node is the default handler's backend's, with what only others say,
// but for the list of handlers, which is the table's, and Version, which is none's.
//
// Finding an owner takes no lock and allocates nothing. The package runs
// nothing, waits for nothing and keeps nothing on disk.
package router

import (
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// Backend runs pods. It serves the whole CRI for the sandboxes that it has, and
// answers Unimplemented (by embedding the generated servers) to what it does
// not do.
//
// All methods may be called at any time from any goroutine. The context of
// RunPodSandbox and RestorePod, and of calls about images, carries the
// Definition that they are routed by (handler.DefinitionFrom), and of the first two
// the generation (handler.GenerationFrom); the context of a
// call by id carries none, because the backend stored it with the sandbox. Ids
// arrive in full. A request may be shared with other backends while a list call
// lasts, and must not be changed. Lists are asked for in one message, whatever form a
// client wants.
//
// Errors are of a containerd/errdefs class, or gRPC status errors.
type Backend interface {
	runtimeapi.RuntimeServiceServer
	runtimeapi.ImageServiceServer

	// ID names the backend among all backends of this daemon, for logs and
	// errors. It never changes.
	ID() string
	// Inventory returns all sandboxes that the backend has, with those that
	// failed half-way and wait to be removed: whatever a list shows, and
	// whatever a call by id can be about. It answers from memory, and must not wait for
	// a call of the router.
	Inventory() []handler.Owned
	// Live says whether a sandbox takes a pod's place under max_pods: from when it
	// is READY until it is stopped whole, or has died. It answers from memory.
	Live(sandbox string) bool
}

// Laggard is a Backend that may be slow to answer, or not answer at all.
type Laggard interface {
	// Prompt says whether it answers in time at present. Who asks several backends
	// and can do without this one does not wait for it if it does not.
	Prompt() bool
}

func prompt(b Backend) bool {
	l, ok := b.(Laggard)
	return !ok || l.Prompt()
}

// Encoder is a Backend that has its lists as they are sent.
type Encoder interface {
	// EncodedSandboxes is the encoded answer of ListPodSandbox.
	EncodedSandboxes(*runtimeapi.PodSandboxFilter) ([]byte, error)
	// EncodedContainers is the encoded answer of ListContainers.
	EncodedContainers(*runtimeapi.ContainerFilter) ([]byte, error)
}
