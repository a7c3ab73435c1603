// Package journal stores the state of a supervisor's tasks on disk. A successor takes the tasks
// over from the journal, and the daemon reads the journal even while no supervisor runs.
//
// The directory belongs to one supervisor at a time (Lock); any process may read it.
package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/supervisor/cgroups"
	"github.com/berth-cri/berth/pkg/engine/supervisor/processes"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
	"github.com/berth-cri/berth/pkg/record"
)

// TaskState is the state of a task in its journal. It does not include the exit of a process, which
// ReadExit returns.
type TaskState string

const (
	// TaskCreated tasks have no process, and the runtime has no state of them.
	TaskCreated TaskState = "created"
	// TaskStarting tasks are being started, or failed to start; the runtime may have state of them.
	TaskStarting TaskState = "starting"
	// TaskRunning tasks have a process, which may have exited.
	TaskRunning TaskState = "running"
	// TaskStdio is not a task of this supervisor: a foreign shim runs it, and the supervisor reads
	// its output.
	TaskStdio TaskState = "stdio"
)

// Task is the journal of one task, from which a successor takes the task over. Fields may be added,
// but never renamed: a successor may be newer.
type Task struct {
	ID       string    `json:"id"`
	State    TaskState `json:"state"`
	Bundle   string    `json:"bundle,omitempty"`
	Terminal bool      `json:"terminal,omitempty"`
	Stdin    string    `json:"stdin,omitempty"`
	Stdout   string    `json:"stdout,omitempty"`
	Stderr   string    `json:"stderr,omitempty"`
	Options  Options   `json:"options,omitzero"`
	// StdinClosed is set by CloseIO: stdin is never opened again.
	StdinClosed bool `json:"stdinClosed,omitempty"`
	// StdinTaken is set while a client is attached and the end of its input closes stdin. A
	// successor cannot reach that client, and does not hold stdin open.
	StdinTaken bool `json:"stdinTaken,omitempty"`
	// Checkpoint is the directory that the task is restored from when it starts; empty for a new
	// container.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Process is the container's first process, once it was started.
	Process processes.Process `json:"process,omitzero"`
	// Execs are the other processes that run in the container, by exec id.
	Execs map[string]Exec `json:"execs,omitempty"`
	// Cgroup is where the container's processes are.
	Cgroup cgroups.Cgroup `json:"cgroup,omitzero"`
	// OwnPIDs is set if the first process is pid 1 of its own PID namespace.
	OwnPIDs bool `json:"ownPIDs,omitempty"`
	// Member is set if the task runs in the sandbox of another container on a separate kernel:
	// Process is then the sandbox's.
	Member bool `json:"member,omitempty"`
	// IgnoredOOM counts the out-of-memory kills in the sandbox's cgroup that did not kill a process
	// of this task.
	IgnoredOOM uint64 `json:"ignoredOOM,omitempty"`
	// Paused is set while the task is possibly paused.
	Paused bool `json:"paused,omitempty"`
	// Writer is the runtime process that writes a checkpoint of the task; it leads its process
	// group.
	Writer processes.Process `json:"writer,omitzero"`
	// MountedRootfs is set if the supervisor mounted the root filesystem.
	MountedRootfs bool `json:"mountedRootfs,omitempty"`
}

// HoldStdin returns a write end of stdin; nil if stdin must not be held open.
func (t *Task) HoldStdin() (*os.File, error) {
	if t.Stdin == "" || t.StdinClosed || t.StdinTaken {
		return nil, nil
	}
	return stdio.HoldOpen(t.Stdin)
}

// Exec is a process that runs in a container besides the first process.
type Exec struct {
	processes.Process
	// Inside is the exec's pid in a separate kernel. If set, Process is the runtime's call.
	Inside int `json:"inside,omitempty"`
}

// Options is the journaled form of TaskOptions of proto/berth/supervisor/v1.
type Options struct {
	Runtime       string        `json:"runtime"`
	Root          string        `json:"root"`
	GlobalFlags   []string      `json:"globalFlags,omitempty"`
	SystemdCgroup bool          `json:"systemdCgroup,omitempty"`
	NoPivotRoot   bool          `json:"noPivotRoot,omitempty"`
	NoNewKeyring  bool          `json:"noNewKeyring,omitempty"`
	Kernel        string        `json:"kernel,omitempty"`
	LogDirectory  string        `json:"logDirectory,omitempty"`
	LogPath       string        `json:"logPath,omitempty"`
	MaxLogLine    int           `json:"maxLogLine,omitempty"`
	IOUID         uint32        `json:"ioUid,omitempty"`
	IOGID         uint32        `json:"ioGid,omitempty"`
	CallTimeout   time.Duration `json:"callTimeout,omitempty"`
	FailureLog    string        `json:"failureLog,omitempty"`
}

// Exit is the exit of a task's first process.
type Exit struct {
	PID int `json:"pid"`
	// Status is the exit code, or 128 plus the number of the signal that killed the process; 128 if
	// the start failed, and 255 if Unknown is set.
	Status uint32 `json:"status"`
	// ExitedAt is when the exit was noticed, in nanoseconds since 1970.
	ExitedAt int64 `json:"exitedAt"`
	// OOM is set if the kernel killed a process of the container because memory ran out.
	OOM bool `json:"oom,omitempty"`
	// Unknown is set if the exit code is lost, or the process was never started.
	Unknown bool `json:"unknown,omitempty"`
	// Why explains the exit to the user where the status does not.
	Why string `json:"why,omitempty"`
}

// Time returns ExitedAt.
func (e Exit) Time() time.Time { return time.Unix(0, e.ExitedAt) }

// ReadTask reads the journal of a task from a supervisor's directory, even while no supervisor
// runs. It fails with errdefs.ErrNotFound if the task does not exist.
func ReadTask(dir, id string) (Task, error) {
	var t Task
	err := readJSON(filepath.Join(TaskDir(dir, id), TaskFile), &t)
	return t, err
}

// ReadExit reads a task's exit from a supervisor's directory; the exit is written before Wait
// returns. ReadExit fails with errdefs.ErrNotFound until the task has exited.
func ReadExit(dir, id string) (Exit, error) {
	var e Exit
	err := readJSON(filepath.Join(TaskDir(dir, id), ExitFile), &e)
	return e, err
}

// TasksDir is the directory of tasks in a supervisor's directory; each task has a directory with a
// TaskFile and, once it has exited, an ExitFile.
const (
	TasksDir = "tasks"
	TaskFile = "task.json"
	ExitFile = "exit.json"
)

// TaskDir returns the directory of a task in its supervisor's directory.
func TaskDir(dir, id string) string { return filepath.Join(dir, TasksDir, id) }

func readJSON(path string, v any) error {
	err := record.Read(path, journalFormat, v)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, errdefs.ErrNotFound)
	}
	return err
}

// journalFormat is the format version of journals.
const journalFormat = 1

// Write does not sync the file: no task outlives a reboot.
func Write(path string, v any) error {
	return record.Write(path, journalFormat, v, atomicfile.Relaxed)
}

// validID allows ids that are file names and cannot be mistaken for an option of a runtime. CheckID
// checks the length itself: 200 repetitions in the expression would cost every supervisor 200 KB.
var validID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// CheckID refuses an id that cannot be a file name, or would be an option of a runtime.
func CheckID(id string) error {
	if len(id) > 200 || !validID.MatchString(id) {
		return fmt.Errorf("%.80q is not a valid ID: %w", id, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Check refuses an invalid task before anything is created.
func (t *Task) Check() error {
	if err := CheckID(t.ID); err != nil {
		return err
	}
	for _, p := range []struct{ what, path string }{
		{"bundle", t.Bundle}, {"runtime", t.Options.Runtime}, {"root", t.Options.Root},
	} {
		if !filepath.IsAbs(p.path) {
			return fmt.Errorf("%s %q is not an absolute path: %w", p.what, p.path, errdefs.ErrInvalidArgument)
		}
	}
	return CheckPaths(t.Stdin, t.Stdout, t.Stderr, t.Options.LogDirectory, t.Options.LogPath)
}

// CheckPaths refuses relative paths. Empty paths are valid.
func CheckPaths(paths ...string) error {
	for _, path := range paths {
		if path != "" && !filepath.IsAbs(path) {
			return fmt.Errorf("%q is not an absolute path: %w", path, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// InheritEnv names the environment variable with the descriptors that the daemon kept for a
// supervisor from its predecessor: map[string]Inherited as JSON, by task id.
const InheritEnv = "BERTH_SHIM_INHERIT"

// Inherited holds the numbers of descriptors (4 and up) that a successor starts with; 0 means none.
type Inherited struct {
	// Pidfd is of the task's first process. Since Linux 6.15, a pidfd that was opened before the
	// process was reaped still returns its exit code afterwards.
	Pidfd int `json:"pidfd,omitempty"`
	// TTY is the master of the task's terminal.
	TTY int `json:"tty,omitempty"`
}

// Each calls do for each descriptor.
func (i Inherited) Each(do func(fd int)) {
	for _, fd := range []int{i.Pidfd, i.TTY} {
		if fd > 0 {
			do(fd)
		}
	}
}

// Close closes the descriptors.
func (i Inherited) Close() { i.Each(func(fd int) { unix.Close(fd) }) }
