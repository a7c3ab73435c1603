// Package task speaks with who runs the tasks of pods: supervisors of OCI runtimes, and
// foreign shims. It creates, starts, kills and deletes tasks, learns of their exits, and
// cleans up after shims that died. What both kinds do differently is one contract,
// pod.Runner, with two implementations: supervised and foreign.
package task

import (
	"context"
	"os"
	"time"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/oomlog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// runners binds sandboxes to who runs their tasks.
type runners struct {
	pods     *pod.Registry
	binaries *binaries.Binaries
	shims    processes
	// kernelLog tells of kills in cgroups that are gone.
	kernelLog *oomlog.Log
}

// processes are those that run tasks.
type processes interface {
	supervisors
	foreignShims
}

// supervisors run the tasks of OCI runtimes, and write logs for foreign shims.
type supervisors interface {
	Supervisor(ctx context.Context, key string) (*shim.Client, error)
	SupervisorDir(key string) string
	Keep(ctx context.Context, key string, c *shim.Client, t shim.Kept) error
	Drop(key, task string)
	Replace(ctx context.Context, key string) error
}

// foreignShims run one sandbox each.
type foreignShims interface {
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
func (r *runners) Bind(s *pod.Sandbox) pod.Runner {
	if s.OwnShim() {
		return &foreign{runners: r, sandbox: s}
	}
	return &supervised{runners: r, sandbox: s}
}

// Worker returns the client for a call that needs the binary of the sandbox's runtime.
func (r *runners) Worker(ctx context.Context, s *pod.Sandbox) (*shim.Client, error) {
	if err := r.binaries.Runtimes.Need(s); err != nil {
		return nil, err
	}
	return s.Runner.Client(ctx)
}

// Replaced tells whether a call that failed with err is worth repeating: it kills the supervisor
// of s if that is unresponsive, and its successor answers.
func (r *runners) Replaced(ctx context.Context, s *pod.Sandbox, err error) bool {
	return shim.IsUnresponsive(err) && r.shims.Replace(ctx, s.Spec().Supervisor) == nil
}

// Drop lets go of what Keep held of a task.
func (r *runners) Drop(s *pod.Sandbox, task string) { r.shims.Drop(s.Spec().Supervisor, task) }

// defaultCallTimeout bounds one create or start call to a runtime whose handler
// says nothing.
const defaultCallTimeout = 4 * time.Minute

// CallTimeout bounds one create or start call to the handler's runtime.
func CallTimeout(d *handler.Definition) time.Duration {
	if d.ContainerCreateTimeout > 0 {
		return d.ContainerCreateTimeout
	}
	return defaultCallTimeout
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
	entries, err := os.ReadDir(images)
	if err != nil {
		return 0 // the call itself will tell
	}
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
	t := shim.Kept{ID: c.ID(), PID: pid, Terminal: c.Config().GetTty()}
	for _, p := range []string{io.Stdout, io.Stderr} {
		if p != "" {
			t.Pipes = append(t.Pipes, p)
		}
	}
	return t
}

// Service is all that is done with tasks.
type Service struct {
	*runners
	*exits
}

// New gives the tasks of pods, which shims run.
func New(pods *pod.Registry, b *binaries.Binaries, shims *shim.Manager) *Service {
	r := &runners{pods: pods, binaries: b, shims: shims, kernelLog: oomlog.New()}
	return &Service{r, &exits{pods: pods, journals: shims}}
}
