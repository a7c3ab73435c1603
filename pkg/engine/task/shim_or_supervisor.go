// Package task speaks with who runs the tasks of pods: supervisors of OCI runtimes, and
// foreign shims. It creates, starts, kills and deletes tasks, learns of their exits, and
// cleans up after shims that died. What both kinds do differently is one contract,
// pod.Runner, with two implementations: supervised and foreign.
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

// Service binds sandboxes to what runs their tasks, and is all that is done with tasks.
type Service struct {
	pods     *pod.Registry
	binaries *binaries.Binaries
	shims    processes
	// kernelLog has the kills in cgroups that are gone.
	kernelLog *oomlog.Log
}

// New gives the tasks of pods, which shims run.
func New(pods *pod.Registry, b *binaries.Binaries, shims *shim.Manager) *Service {
	return &Service{pods: pods, binaries: b, shims: shims, kernelLog: oomlog.New()}
}

// processes are those that run tasks: supervisors those of OCI runtimes, and foreign
// shims one sandbox each, whose logs supervisors write.
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
	CleanUpForeign(ctx context.Context, s shim.Start) (shim.Death, error)
	ReadLog(s shim.Start, ep shim.Endpoint) error
}

// CRIU's interfaces are optional: without these lines, a changed signature would go unnoticed.
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

// Worker returns the client for a call that needs the binary of the sandbox's runtime.
func (r *Service) Worker(ctx context.Context, s *pod.Sandbox) (*shim.Client, error) {
	if err := r.binaries.Runtimes.Ensure(s); err != nil {
		return nil, err
	}
	return s.Runner.Client(ctx)
}

// Replaced tells whether a call that failed with err is worth repeating: it kills the supervisor
// of s if that is unresponsive, and its successor answers.
func (r *Service) Replaced(ctx context.Context, s *pod.Sandbox, err error) bool {
	return shim.IsUnresponsive(err) && r.shims.Replace(ctx, s.Spec().Supervisor) == nil
}

// Drop lets go of what Keep held of a task.
func (r *Service) Drop(s *pod.Sandbox, task string) { r.shims.Drop(s.Spec().Supervisor, task) }

// defaultCallTimeout bounds one create or start call to a runtime whose handler
// says nothing.
const defaultCallTimeout = 4 * time.Minute

// CallTimeout bounds one create or start call to the handler's runtime.
func CallTimeout(d *handler.Definition) time.Duration {
	return cmp.Or(d.ContainerCreateTimeout, defaultCallTimeout)
}

// restoreRate is how much of a checkpoint a disk reads at the least, in bytes per second.
const restoreRate = 10 << 20

// RestoreTime is how much longer a call may take that reads the checkpoint in a directory;
// nothing for an empty name.
func RestoreTime(images string) time.Duration {
	if images == "" {
		return 0
	}
	size := int64(0)
	entries, _ := os.ReadDir(images) // without them the call itself fails
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			size += info.Size()
		}
	}
	return time.Duration(size/restoreRate+1) * time.Second
}

// KeptOf is what a Runner that dies would lose of c, whose first process is pid.
func KeptOf(l pod.Layout, c *pod.Container, pid int) shim.Kept {
	io := l.Stdio(c)
	io.Stdin = "" // the container reads it itself
	return shim.Kept{ID: c.ID(), PID: pid, Terminal: c.Config().GetTty(), Pipes: io.Paths()}
}
