package pod

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// message stores a protobuf message inside a JSON record. The wire form keeps fields that are
// unknown to this build.
type message[M proto.Message] struct{ Msg M }

func (m message[M]) MarshalJSON() ([]byte, error) {
	if !m.Msg.ProtoReflect().IsValid() {
		return []byte("null"), nil
	}
	b, err := proto.Marshal(m.Msg)
	if err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

func (m *message[M]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	var b []byte
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	m.Msg = m.Msg.ProtoReflect().New().Interface().(M)
	return proto.Unmarshal(b, m.Msg)
}

// Phase is the state of an object's life. The zero value means that its creation never completed:
// such an object was never visible.
type Phase string

// The phases of sandboxes and containers.
const (
	PhasePlanned Phase = ""
	PhaseReady   Phase = "ready"   // sandboxes
	PhaseStopped Phase = "stopped" // sandboxes
	PhaseCreated Phase = "created" // containers
	PhaseRunning Phase = "running" // containers
	PhaseExited  Phase = "exited"  // containers
)

// SandboxRecords are the records of sandboxes on disk.
type SandboxRecords = store.Store[SandboxSpec, SandboxStatus]

// ContainerRecords are the records of containers on disk.
type ContainerRecords = store.Store[ContainerSpec, ContainerStatus]

// SandboxSpec is the constant part of a sandbox's record.
type SandboxSpec struct {
	// Handler is the name as requested; "" stays "".
	Handler    string                                `json:"handler"`
	Definition *handler.Definition                   `json:"definition"`
	Config     message[*runtimeapi.PodSandboxConfig] `json:"config"`
	CreatedAt  int64                                 `json:"createdAt"`
	Supervisor string                                `json:"supervisor"`
	// Boot is the node's boot id at the creation.
	Boot string `json:"boot,omitempty"`
	// ProcessLabel and MountLabel are the pod's SELinux labels.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	Plan         Plan   `json:"plan"`
	// SelfCheck marks berth's own sandbox that checks whether the handler works. It has no network
	// and is not visible to clients.
	SelfCheck bool `json:"selfCheck,omitempty"`
	// Pinned is the configuration in addition to Definition.
	Pinned Pinned `json:"pinned"`
	// Checkpoint is the directory that it was restored from; empty for a new sandbox.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// Origin is the checkpoint that a pod is restored from.
type Origin struct {
	// Images is the directory that the runtime wrote.
	Images string
	// Binaries are kept binaries that the checkpoint needs; nil selects the installed binaries.
	Binaries []keep.Binary
}

// SandboxStatus is the variable part of a sandbox's record.
type SandboxStatus struct {
	Phase Phase `json:"phase"`
	// Stopping is set when StopPodSandbox is called, Stopped when it has completed.
	Stopping   bool             `json:"stopping,omitempty"`
	Stopped    bool             `json:"stopped,omitempty"`
	Namespaces namespaces.Paths `json:"namespaces"`
	Network    *network.Result  `json:"network,omitempty"`
	// Restored is set when the call that restored it from a checkpoint has completed.
	Restored bool `json:"restored,omitempty"`
	// Tried is set before CNI ADD runs, so that DEL runs after a crash.
	Tried bool           `json:"tried,omitempty"`
	PID   int            `json:"pid,omitempty"`
	Shim  *shim.Endpoint `json:"shim,omitempty"`
	// ExitCode is set when the sandbox process has exited.
	ExitCode uint32 `json:"exitCode,omitempty"`
	// Overhead and Resources are the last values of UpdatePodSandboxResources.
	Overhead  message[*runtimeapi.LinuxContainerResources] `json:"overhead"`
	Resources message[*runtimeapi.LinuxContainerResources] `json:"resources"`
}

// ContainerSpec is the constant part of a container's record.
type ContainerSpec struct {
	Sandbox   string                               `json:"sandbox"`
	Config    message[*runtimeapi.ContainerConfig] `json:"config"`
	CreatedAt int64                                `json:"createdAt"`
	ImageID   string                               `json:"imageID"`
	ImageRef  string                               `json:"imageRef"`
	ImageName string                               `json:"imageName"`
	// ImageTag is the image's own name in lists: a tag, or a name by digest.
	ImageTag    string `json:"imageTag,omitempty"`
	ImageChain  string `json:"imageChain"`
	Snapshotter string `json:"snapshotter"`
	CgroupsPath string `json:"cgroupsPath"`
	LogPath     string `json:"logPath,omitempty"`
	// LogDirectory is the part of LogPath given by the kubelet; directories below it are not
	// trusted.
	LogDirectory string `json:"logDirectory,omitempty"`
	StopSignal   string `json:"stopSignal"`
	// ProcessLabel and MountLabel are the container's SELinux labels.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	// Volumes are the images among the mounts, in the order of their directories.
	Volumes []ImageVolume `json:"volumes,omitempty"`
	// DefinedVolumes are the image's volume paths, in the order of their directories.
	DefinedVolumes []string `json:"definedVolumes,omitempty"`
	// Checkpoint is the directory from which the runtime restores it; empty for a new container.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// ContainerStatus is the variable part of a container's record.
type ContainerStatus struct {
	Phase      Phase  `json:"phase"`
	PID        int    `json:"pid,omitempty"`
	StartedAt  int64  `json:"startedAt,omitempty"`
	FinishedAt int64  `json:"finishedAt,omitempty"`
	ExitCode   int32  `json:"exitCode,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// User is the user of the first process.
	User    ocispec.User `json:"user"`
	Message string       `json:"message,omitempty"`
	// Unstartable is a shim's error of the task's creation, which the start returns.
	Unstartable string `json:"unstartable,omitempty"`
	// Erased is set when the runtime's state of the container is deleted.
	Erased    bool                                    `json:"erased,omitempty"`
	Resources message[*runtimeapi.ContainerResources] `json:"resources"`
}

// UnknownExitCode is reported when the real code is lost.
const UnknownExitCode = 255

// startFailedCode is the exit code of a container that failed to start.
const startFailedCode = 128

// Failed makes s the status of a container that could not be created or started.
func (s *ContainerStatus) Failed(reason string, cause error, now int64) {
	s.Phase, s.ExitCode, s.Reason = PhaseExited, startFailedCode, reason
	s.Message, s.FinishedAt = printable.Line(printable.Error(cause)), now
}

// LostExit makes s the status of a container that exited unobserved.
func (s *ContainerStatus) LostExit(now time.Time, oom bool) {
	s.Phase, s.PID = PhaseExited, 0
	s.ExitCode, s.Reason = UnknownExitCode, ExitReason(UnknownExitCode, oom, true)
	s.Message = "the container exited while it was not watched; its exit code is lost"
	s.FinishedAt = now.UnixNano()
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// ImageVolume is an image among a container's mounts.
type ImageVolume struct {
	// Path is the mount's cleaned path in the container.
	Path string `json:"path"`
	// SubPath is the mounted directory of the image; empty is all of it.
	SubPath    string `json:"subPath,omitempty"`
	ImageID    string `json:"imageID"`
	ImageChain string `json:"imageChain"`
}
