package pod

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/probe"
)

// Runner is who runs the tasks of one sandbox: the supervisor of an OCI runtime, or a
// foreign shim. A Sandbox gets its own when it is made or recovered, and nothing else
// asks which kind that is: what they do differently is behind these methods, what is
// true of only one of them is a method of Sandbox. Package task has both kinds. All
// methods may be called concurrently.
type Runner struct {
	Connection
	Tasks
	Logs
	Meter
}

// Meter reports what only a Runner may see of the containers of its sandbox.
type Meter interface {
	// Usage asks what a container uses, which only its Runner knows if its processes
	// are not the node's.
	Usage(ctx context.Context, container string) (cgroup.Stats, error)
	// KilledForMemory tells of kills that the Runner may report too late, or to nobody.
	KilledForMemory(ctx context.Context, cgroupsPath string) bool
}

// CRIUConfigurer are Tasks whose runtime may read a configuration of CRIU from the bundle.
type CRIUConfigurer interface {
	// CRIUConfig is the path of that file for a runtime; empty where it makes no checkpoints,
	// or gets the configuration in another way.
	CRIUConfig(bundle string, rt *probe.Runtime) string
}

// CRIUCaller are Tasks that leave it to their caller to configure CRIU and to explain its
// failures. Supervisors do both themselves.
type CRIUCaller interface {
	// TellCRIU writes the configuration for a call that is about to be made; done removes it.
	TellCRIU(call CRIUCall) (done func() error, err error)
	// ExplainCheckpoint adds to err why a checkpoint failed whose working directory is dir.
	ExplainCheckpoint(err error, dir string) error
	// ExplainRestore adds to err why CRIU failed to restore the container in a bundle.
	ExplainRestore(err error, bundle string) error
}

// CRIUCall is what a runtime is to do by CRIU.
type CRIUCall struct {
	Bundle string
	// Images is the directory that a container is restored from; empty where one is written.
	Images string
	// OpenTCP has established connections written as they are.
	OpenTCP bool
}

// Connection is the way to a Runner.
type Connection interface {
	// Name tells Runners apart: the key of a supervisor, which sandboxes may share, or
	// the address of a shim.
	Name() string
	// Prepare starts what may be started before the sandbox has namespaces and files.
	Prepare(ctx context.Context) error
	// Launch returns the client that creates the sandbox process. A foreign shim is
	// started by it.
	Launch(ctx context.Context) (*shim.Client, error)
	// Client returns the client of a Runner that was launched.
	Client(ctx context.Context) (*shim.Client, error)
	// Keep holds what task t would lose with its Runner. A failure is logged: it costs
	// only what a later crash would lose.
	Keep(ctx context.Context, t shim.Kept)
	// ReadLog goes on reading what the Runner logs, after a restart of the daemon.
	ReadLog(ctx context.Context) error
}

// Tasks are the lives of tasks as far as Runners differ in them.
type Tasks interface {
	// Options are the runtime options of a new task.
	Options(o TaskOptions) (*anypb.Any, error)
	// LaunchTimeout bounds the start of the sandbox process.
	LaunchTimeout() time.Duration
	// Blame marks an error of a task call as the runtime's fault, if it is (handler.Blame).
	Blame(err error) error
	// Exit waits for the exit of a task.
	Exit(ctx context.Context, task string) (Exit, error)
	// Gone says that err is final: the Runner will never know the task again.
	Gone(err error) bool
	// LastWord is what can still be found out about a task after err, which is final.
	// It cleans up after a shim that died.
	LastWord(ctx context.Context, task string, err error) (Exit, error)
	// Delete kills a container's task if it runs, and has the Runner forget it.
	Delete(ctx context.Context, task string) error
	// End stops the sandbox process, and all that the Runner runs this sandbox in.
	End(ctx context.Context) error
	// Insist calls end, which stops what runs inside the sandbox. A foreign shim that
	// does not do so in time is killed.
	Insist(ctx context.Context, end func(context.Context) error) error
}

// TaskOptions are what the options of one task depend on.
type TaskOptions struct {
	// LogPath, below LogDirectory, is its log; both are empty for the sandbox process.
	LogDirectory, LogPath string
	// Checkpoint is the directory that it is restored from; empty for one that begins.
	Checkpoint string
}

// Logs are the logs of containers.
type Logs interface {
	// OpenLog makes somebody write the log of c, if its Runner does not do so itself.
	OpenLog(ctx context.Context, c *Container) error
	// FlushLog waits until the log of c, which has exited, is whole.
	FlushLog(ctx context.Context, c *Container) error
	// CloseLog undoes OpenLog.
	CloseLog(ctx context.Context, c *Container) error
}

// Binder gives a sandbox its Runner.
type Binder interface {
	Bind(s *Sandbox) Runner
}

// Exit is how a task exited.
type Exit struct {
	Status       uint32
	At           time.Time
	OOM, Unknown bool
	// Why is for the user, where the status does not say it.
	Why string
}
