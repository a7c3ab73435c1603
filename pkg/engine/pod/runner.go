package pod

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/probe"
)

// Runner runs the tasks of one sandbox: the supervisor of an OCI runtime, or a foreign shim. A
// Sandbox gets its own when it is created or recovered. No other code distinguishes the two:
// behaviour that differs is behind these methods, and properties that differ are methods of
// Sandbox. Package task implements both. All methods are safe for concurrent use.
type Runner struct {
	Connection
	Tasks
	Logs
	Meter
}

// Meter measures containers that only a Runner can measure.
type Meter interface {
	// Usage measures a container without processes on the node.
	Usage(ctx context.Context, container string) (cgroup.Stats, error)
	// KilledForMemory detects kills that the Runner may report too late or not at all.
	KilledForMemory(ctx context.Context, cgroupsPath string) bool
}

// CRIUConfigurer are Tasks of runtimes that may read a configuration of CRIU from the bundle.
type CRIUConfigurer interface {
	// CRIUConfig is the path of that file for a runtime; empty if it writes no checkpoints, or gets
	// the configuration in another way.
	CRIUConfig(bundle string, rt *probe.Runtime) string
}

// CRIUCaller are Tasks that require their caller to configure CRIU and to explain its failures.
// Supervisors do both themselves.
type CRIUCaller interface {
	// ConfigureCRIU writes the configuration for the next call; done removes it.
	ConfigureCRIU(call CRIUCall) (done func() error, err error)
	// ExplainCheckpoint adds the reason to the error of a failed checkpoint with working directory
	// dir.
	ExplainCheckpoint(err error, dir string) error
	// ExplainRestore adds the reason why CRIU failed to restore the container in a bundle.
	ExplainRestore(err error, bundle string) error
}

// CRIUCall is a runtime's call of CRIU.
type CRIUCall struct {
	Bundle string
	// Images is the directory to restore from; empty for a checkpoint.
	Images string
	// OpenTCP keeps established connections.
	OpenTCP bool
}

// Connection connects to a Runner.
type Connection interface {
	// Name identifies a Runner: the key of a supervisor, which sandboxes may share, or the address
	// of a shim.
	Name() string
	// Prepare starts what needs neither namespaces nor files of the sandbox.
	Prepare(ctx context.Context) error
	// Launch returns the client that creates the sandbox process. It starts a foreign shim.
	Launch(ctx context.Context) (*shim.Client, error)
	// Client returns the client of a launched Runner.
	Client(ctx context.Context) (*shim.Client, error)
	// Keep copies the descriptors that task t would lose with its Runner. A failure is only logged,
	// because it matters only if the Runner crashes.
	Keep(ctx context.Context, t shim.Kept)
	// ReadLog continues to read the Runner's log after a restart of the daemon.
	ReadLog(ctx context.Context) error
}

// Tasks are the operations on tasks that differ between Runners.
type Tasks interface {
	// Options are the runtime options of a new task.
	Options(o TaskOptions) (*anypb.Any, error)
	// LaunchTimeout bounds the start of the sandbox process.
	LaunchTimeout() time.Duration
	// Attribute attributes an error of a task call to the runtime if the runtime caused it
	// (handler.AttributeToRuntime).
	Attribute(err error) error
	// Exit waits for the exit of a task.
	Exit(ctx context.Context, task string) (Exit, error)
	// Gone reports whether err is final: the Runner will never find the task again.
	Gone(err error) bool
	// ExitRecord returns what is recorded of a task's exit after the final error err. It cleans up
	// after a shim that died.
	ExitRecord(ctx context.Context, task string, err error) (Exit, error)
	// Delete kills a container's task if it runs, and deletes it.
	Delete(ctx context.Context, task string) error
	// End stops the sandbox process, and the shim and virtual machine that run only this sandbox.
	End(ctx context.Context) error
	// StopOrKill calls end, which stops what runs inside the sandbox. If end fails, it kills the
	// processes of the sandbox or, after some time, the foreign shim.
	StopOrKill(ctx context.Context, end func(context.Context) error) error
}

// TaskOptions are the inputs of one task's options.
type TaskOptions struct {
	// LogPath, below LogDirectory, is the task's log; both are empty for the sandbox process.
	LogDirectory, LogPath string
	// Checkpoint is the directory to restore from; empty for a new task.
	Checkpoint string
}

// Logs are the logs of containers.
type Logs interface {
	// OpenLog arranges that the log of c is written, if its Runner does not write it itself.
	OpenLog(ctx context.Context, c *Container) error
	// FlushLog waits until the log of c, which has exited, is complete.
	FlushLog(ctx context.Context, c *Container) error
	// CloseLog reverses OpenLog.
	CloseLog(ctx context.Context, c *Container) error
}

// Binder returns the Runner of a sandbox.
type Binder interface {
	Bind(s *Sandbox) Runner
}

// Exit is how a task exited.
type Exit struct {
	Status       uint32
	At           time.Time
	OOM, Unknown bool
	// Why explains the exit to the user, if the status does not.
	Why string
}
