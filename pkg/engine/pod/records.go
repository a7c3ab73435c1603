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

// message stores a protobuf message inside a JSON record. The wire form keeps
// fields that this build does not know.
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

// Phase is how far an object has come. The zero value is the one of a record
// whose creation never ended: such an object was never shown to anybody.
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

// ContainerRecords are those of containers.
type ContainerRecords = store.Store[ContainerSpec, ContainerStatus]

// SandboxSpec is what a sandbox is created with and keeps for its whole life:
// the pin.
type SandboxSpec struct {
	// Handler is the name as requested; "" stays "".
	Handler    string                                `json:"handler"`
	Definition *handler.Definition                   `json:"definition"`
	Config     message[*runtimeapi.PodSandboxConfig] `json:"config"`
	CreatedAt  int64                                 `json:"createdAt"`
	Supervisor string                                `json:"supervisor"`
	// Boot is the boot of the node in which it was created.
	Boot string `json:"boot,omitempty"`
	// ProcessLabel and MountLabel are the pod's SELinux labels.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	Plan         Plan   `json:"plan"`
	// SelfCheck says that it is berth's own, to see whether the handler works: it has
	// no network, and nobody is told of it.
	SelfCheck bool `json:"selfCheck,omitempty"`
	// Pinned is what it takes from the configuration beside Definition.
	Pinned Pinned `json:"pinned"`
	// Checkpoint is the directory that it was restored from; empty for one that began here.
	Checkpoint string `json:"checkpoint,omitempty"`
	// ByContainer says that its containers are restored from that, each by itself, and not
	// the sandbox with all in it.
	ByContainer bool `json:"byContainer,omitempty"`
}

// WholeCheckpoint is the directory that its runtime restored the sandbox from, with all in it.
func (s *SandboxSpec) WholeCheckpoint() string {
	if s.ByContainer {
		return ""
	}
	return s.Checkpoint
}

// Origin is what a pod is restored from.
type Origin struct {
	// Images is the directory that the runtime wrote.
	Images string
	// ByContainer says that Images has a directory for each container; Images of a container
	// is that then.
	ByContainer bool
	// Binaries are kept ones, of another pod, that the checkpoint needs; nil are those
	// that are installed.
	Binaries []keep.Binary
}

// SandboxStatus is what changes.
type SandboxStatus struct {
	Phase Phase `json:"phase"`
	// Stopping says that StopPodSandbox was called, Stopped that it came to its end.
	Stopping   bool             `json:"stopping,omitempty"`
	Stopped    bool             `json:"stopped,omitempty"`
	Namespaces namespaces.Paths `json:"namespaces"`
	Network    *network.Result  `json:"network,omitempty"`
	// Restored says that the call came to its end which restored it from a checkpoint.
	Restored bool `json:"restored,omitempty"`
	// Tried is set before CNI ADD runs, so that DEL runs after a crash.
	Tried bool           `json:"tried,omitempty"`
	PID   int            `json:"pid,omitempty"`
	Shim  *shim.Endpoint `json:"shim,omitempty"`
	// Overhead and Resources are what UpdatePodSandboxResources sent last.
	Overhead  message[*runtimeapi.LinuxContainerResources] `json:"overhead"`
	Resources message[*runtimeapi.LinuxContainerResources] `json:"resources"`
}

// ContainerSpec is what a container is created with.
type ContainerSpec struct {
	Sandbox   string                               `json:"sandbox"`
	Config    message[*runtimeapi.ContainerConfig] `json:"config"`
	CreatedAt int64                                `json:"createdAt"`
	ImageID   string                               `json:"imageID"`
	ImageRef  string                               `json:"imageRef"`
	ImageName string                               `json:"imageName"`
	// ImageTag is the image's own name that lists show: a tag, or the digest that the pod pins.
	ImageTag    string `json:"imageTag,omitempty"`
	ImageChain  string `json:"imageChain"`
	Snapshotter string `json:"snapshotter"`
	CgroupsPath string `json:"cgroupsPath"`
	LogPath     string `json:"logPath,omitempty"`
	// LogDirectory is the part of LogPath that the kubelet gave; what is below it is
	// not trusted.
	LogDirectory string `json:"logDirectory,omitempty"`
	StopSignal   string `json:"stopSignal"`
	// ProcessLabel and MountLabel are the container's SELinux labels.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	// Volumes are the images among the mounts, in the order of their directories.
	Volumes []ImageVolume `json:"volumes,omitempty"`
	// DefinedVolumes are where the image asks for volumes, in the order of their
	// directories.
	DefinedVolumes []string `json:"definedVolumes,omitempty"`
	// Checkpoint is the directory that its runtime restores it from; empty for one that
	// begins here.
	Checkpoint string `json:"checkpoint,omitempty"`
}

// ContainerStatus is what changes.
type ContainerStatus struct {
	Phase      Phase  `json:"phase"`
	PID        int    `json:"pid,omitempty"`
	StartedAt  int64  `json:"startedAt,omitempty"`
	FinishedAt int64  `json:"finishedAt,omitempty"`
	ExitCode   int32  `json:"exitCode,omitempty"`
	Reason     string `json:"reason,omitempty"`
	// User is who the first process runs as.
	User    ocispec.User `json:"user"`
	Message string       `json:"message,omitempty"`
	// Unstartable is why a shim could not create the task: the start says so.
	Unstartable string `json:"unstartable,omitempty"`
	// Erased says that the runtime has nothing of the container any more.
	Erased    bool                                    `json:"erased,omitempty"`
	Resources message[*runtimeapi.ContainerResources] `json:"resources"`
}

// UnknownExitCode is reported where the true code is lost.
const UnknownExitCode = 255

// startFailedCode is the exit code of a container that could not be started.
const startFailedCode = 128

// Failed is the status of a container that could not be created or started.
func (s *ContainerStatus) Failed(reason string, cause error, now int64) {
	s.Phase, s.ExitCode, s.Reason = PhaseExited, startFailedCode, reason
	s.Message, s.FinishedAt = printable.Line(printable.Error(cause)), now
}

// LostExit is the status of a container whose exit was not watched.
func (s *ContainerStatus) LostExit(now time.Time, oom bool) {
	s.Phase, s.PID = PhaseExited, 0
	s.ExitCode, s.Reason = UnknownExitCode, ExitReason(UnknownExitCode, oom, true)
	s.Message = "the container exited while it was not watched; its exit code is lost"
	s.FinishedAt = now.UnixNano()
}

// selects tells whether labels have every pair of selector.
func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if has, ok := labels[k]; !ok || has != v {
			return false
		}
	}
	return true
}

// ImageVolume is an image that a container has among its mounts.
type ImageVolume struct {
	// Path is the mount's cleaned path in the container.
	Path string `json:"path"`
	// SubPath is the directory of the image that is mounted; empty is all of it.
	SubPath    string `json:"subPath,omitempty"`
	ImageID    string `json:"imageID"`
	ImageChain string `json:"imageChain"`
}
