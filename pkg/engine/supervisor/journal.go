package supervisor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/supervisor/stdio"
	"github.com/berth-cri/berth/pkg/record"
)

// TaskState is how far a task has come, as its journal says. That a process has
// exited is not in it: that is what ReadExit tells.
type TaskState string

const (
	// TaskCreated tasks have no process and the runtime does not know them.
	TaskCreated TaskState = "created"
	// TaskStarting tasks were being started: the runtime may know them.
	TaskStarting TaskState = "starting"
	// TaskRunning tasks have, or had, a process.
	TaskRunning TaskState = "running"
	// TaskStdio is no task: a foreign shim runs it and only its output is read.
	TaskStdio TaskState = "stdio"
)

// Task is the journal of one task: what a successor needs in order to take it
// over. Fields may be added, never renamed: a successor may be newer.
type Task struct {
	ID       string    `json:"id"`
	State    TaskState `json:"state"`
	Bundle   string    `json:"bundle,omitempty"`
	Terminal bool      `json:"terminal,omitempty"`
	Stdin    string    `json:"stdin,omitempty"`
	Stdout   string    `json:"stdout,omitempty"`
	Stderr   string    `json:"stderr,omitempty"`
	Options  Options   `json:"options,omitzero"`
	// StdinClosed says that CloseIO was called: nobody may open it again.
	StdinClosed bool `json:"stdinClosed,omitempty"`
	// StdinTaken says that somebody is attached with whom stdin ends. A successor
	// does not have him, and closes it.
	StdinTaken bool `json:"stdinTaken,omitempty"`
	// Checkpoint is the directory that it is restored from when it starts; empty for one
	// that begins.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Process is the container's first process, once it was started.
	Process Process `json:"process,omitzero"`
	// Execs are further processes that run in the container, by exec id.
	Execs map[string]Process `json:"execs,omitempty"`
	// Cgroup is where the container's processes are.
	Cgroup Cgroup `json:"cgroup,omitzero"`
	// OwnPIDs says that the first process is pid 1 of a namespace of its own.
	OwnPIDs bool `json:"ownPIDs,omitempty"`
	// Member says that it runs in the sandbox of another container of a kernel
	// of its own: Process is then that sandbox's.
	Member bool `json:"member,omitempty"`
	// ExcusedOOM counts the out-of-memory kills in a member's cgroup, which is the
	// sandbox's, that are none of its own.
	ExcusedOOM uint64 `json:"excusedOOM,omitempty"`
	// Paused says that it may stand still.
	Paused bool `json:"paused,omitempty"`
	// Writer is the runtime, and leads the process group, that writes a checkpoint of it.
	Writer Process `json:"writer,omitzero"`
	// MountedRootfs says that the root filesystem was mounted here.
	MountedRootfs bool `json:"mountedRootfs,omitempty"`
}

// holdStdin returns a write end of stdin; nil if there is no stdin to be held open.
func (t *Task) holdStdin() (*os.File, error) {
	if t.Stdin == "" || t.StdinClosed || t.StdinTaken {
		return nil, nil
	}
	return stdio.HoldOpen(t.Stdin)
}

// Cgroup is the part of a container's cgroups that a supervisor needs; the
// paths are directories, empty when there is none of its own.
type Cgroup struct {
	// Unified is the cgroup of version 2.
	Unified string `json:"unified,omitempty"`
	// Memory, Freezer and Pids are those of version 1.
	Memory  string `json:"memory,omitempty"`
	Freezer string `json:"freezer,omitempty"`
	Pids    string `json:"pids,omitempty"`
}

// Process identifies a process beyond the reuse of its pid.
type Process struct {
	PID int `json:"pid,omitempty"`
	// StartTime is field 22 of /proc/<pid>/stat, in clock ticks since boot.
	StartTime uint64 `json:"startTime,omitempty"`
}

// Options is TaskOptions of proto/berth/supervisor/v1 as it is journaled.
type Options struct {
	Runtime       string        `json:"runtime"`
	Root          string        `json:"root"`
	GlobalFlags   []string      `json:"globalFlags,omitempty"`
	SystemdCgroup bool          `json:"systemdCgroup,omitempty"`
	NoPivotRoot   bool          `json:"noPivotRoot,omitempty"`
	NoNewKeyring  bool          `json:"noNewKeyring,omitempty"`
	OwnKernel     bool          `json:"ownKernel,omitempty"`
	LogDirectory  string        `json:"logDirectory,omitempty"`
	LogPath       string        `json:"logPath,omitempty"`
	MaxLogLine    int           `json:"maxLogLine,omitempty"`
	IOUID         uint32        `json:"ioUid,omitempty"`
	IOGID         uint32        `json:"ioGid,omitempty"`
	CallTimeout   time.Duration `json:"callTimeout,omitempty"`
	FailureLog    string        `json:"failureLog,omitempty"`
}

// Exit is how a task's first process ended.
type Exit struct {
	PID int `json:"pid"`
	// Status is the exit code, or 128 plus the signal that killed it; 255 when
	// it is unknown.
	Status uint32 `json:"status"`
	// ExitedAt is when the end was seen, in nanoseconds since 1970.
	ExitedAt int64 `json:"exitedAt"`
	// OOM says that the kernel killed a process of the container for memory.
	OOM bool `json:"oom,omitempty"`
	// Unknown says that the process is gone and nobody can tell its code.
	Unknown bool `json:"unknown,omitempty"`
	// Why is for the user, where the status does not say it.
	Why string `json:"why,omitempty"`
}

// Time is ExitedAt as a time.
func (e Exit) Time() time.Time { return time.Unix(0, e.ExitedAt) }

// ReadTask reads the journal of a task from a supervisor's directory. It works
// whether the supervisor lives or not. errdefs.ErrNotFound without such a task.
func ReadTask(dir, id string) (Task, error) {
	var t Task
	err := readJSON(filepath.Join(taskDir(dir, id), taskFile), &t)
	return t, err
}

// ReadExit reads how a task ended from a supervisor's directory; it is there
// before Wait returns. errdefs.ErrNotFound as long as the task has not ended.
func ReadExit(dir, id string) (Exit, error) {
	var e Exit
	err := readJSON(filepath.Join(taskDir(dir, id), exitFile), &e)
	return e, err
}

const (
	tasksDir = "tasks"
	taskFile = "task.json"
	exitFile = "exit.json"
)

func taskDir(dir, id string) string { return filepath.Join(dir, tasksDir, id) }

func readJSON(path string, v any) error {
	err := record.Read(path, journalFormat, v)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", path, errdefs.ErrNotFound)
	}
	return err
}

// journalFormat is the number of the form of journals.
const journalFormat = 1

// writeJSON does not flush: the directory does not outlive a boot.
func writeJSON(path string, v any) error {
	return record.Write(path, journalFormat, v, atomicfile.Relaxed)
}
