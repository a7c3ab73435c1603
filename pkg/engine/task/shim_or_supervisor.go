// Package task creates, starts, kills and deletes the tasks of pods, reports their exits, and
// cleans up after dead shims. Tasks run in supervisors of OCI runtimes or in foreign shims; both
// implement one contract, pod.Runner (supervised and foreign).
package task

import (
	"cmp"
	"context"
	"os"
	"time"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/oomlog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// Service binds sandboxes to the processes that run their tasks.
type Service struct {
	pods     *pod.Registry
	binaries *binaries.Binaries
	shims    processes
	// kernelLog has OOM kills of removed cgroups.
	kernelLog *oomlog.Log
}

// New returns the Service for the tasks of pods. shims connects to their processes.
func New(pods *pod.Registry, b *binaries.Binaries, shims *shim.Manager) *Service {
	return &Service{pods: pods, binaries: b, shims: shims, kernelLog: oomlog.New()}
}

// processes are the methods of shim.Manager for the two kinds of processes that run tasks:
// supervisors, which also write the logs of all tasks, and foreign shims.
type processes interface {
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
	SupervisorDir(key string) string
	Keep(ctx context.Context, key string, c *shim.Client, t shim.Kept) error
	Drop(key, task string)
	Replace(ctx context.Context, key string) error

	StartForeign(ctx context.Context, s shim.Start) (shim.Endpoint, *shim.Client, error)
	Started(ctx context.Context, bundle string) (shim.Endpoint, error)
	Foreign(ctx context.Context, ep shim.Endpoint) (*shim.Client, error)
	DismissForeign(ctx context.Context, ep shim.Endpoint, c *shim.Client, id string) error
	CleanUpForeign(ctx context.Context, s shim.Start) (shim.TaskExit, error)
	ReadLog(s shim.Start, ep shim.Endpoint) error
}

// CRIU's interfaces are optional: these lines make the compiler check their signatures.
var (
	_ pod.CRIUConfigurer = (*supervised)(nil)
	_ pod.CRIUConfigurer = (*foreign)(nil)
	_ pod.CRIUCaller     = (*foreign)(nil)
)

// Bind implements pod.Binder.
func (r *Service) Bind(s *pod.Sandbox) pod.Runner {
	if s.OwnShim() {
		by := &foreign{Service: r, sandbox: s}
		return pod.Runner{Connection: by, Tasks: by, Logs: by, Meter: by}
	}
	by := &supervised{Service: r, sandbox: s}
	return pod.Runner{Connection: by, Tasks: by, Logs: by, Meter: by}
}

// Worker returns the client for calls that need the binary of the sandbox's runtime.
func (r *Service) Worker(ctx context.Context, s *pod.Sandbox) (*shim.Client, error) {
	if err := r.binaries.Runtimes.Ensure(s); err != nil {
		return nil, err
	}
	return s.Runner.Client(ctx)
}

// Replaced kills the supervisor of s if err means that it is unresponsive. It reports whether the
// failed call should be repeated, because a successor will answer.
func (r *Service) Replaced(ctx context.Context, s *pod.Sandbox, err error) bool {
	return shim.IsUnresponsive(err) && r.shims.Replace(ctx, s.Spec().Supervisor) == nil
}

// Drop closes the descriptors that Keep holds of a task.
func (r *Service) Drop(s *pod.Sandbox, task string) { r.shims.Drop(s.Spec().Supervisor, task) }

// defaultCallTimeout bounds one create or start call if the handler sets no limit.
const defaultCallTimeout = 4 * time.Minute

// CallTimeout bounds one create or start call to the handler's runtime.
func CallTimeout(d *handler.Definition) time.Duration {
	return cmp.Or(d.ContainerCreateTimeout, defaultCallTimeout)
}

// restoreRate is the slowest assumed disk read of a checkpoint, in bytes per second.
const restoreRate = 10 << 20

// RestoreTime is the extra time of a call that reads the checkpoint in a directory; 0 for an empty
// name.
func RestoreTime(images string) time.Duration {
	if images == "" {
		return 0
	}
	size := int64(0)
	entries, _ := os.ReadDir(images) // if this fails, the call itself fails, too
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	return time.Duration(size/restoreRate+1) * time.Second
}

// KeptOf lists the descriptors of c that are lost if its Runner dies. pid is its first process.
func KeptOf(l pod.Layout, c *pod.Container, pid int) shim.Kept {
	io := l.Stdio(c)
	io.Stdin = "" // the container itself reads stdin
	return shim.Kept{ID: c.ID(), PID: pid, Terminal: c.Config().GetTty(), Pipes: io.Paths()}
}
