package engine

import (
	"encoding/json"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pin"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
)

// message stores a protobuf message inside a JSON record. The wire form keeps
// fields that this build does not know.
type message[M any, P interface {
	*M
	proto.Message
}] struct{ msg P }

func (m message[M, P]) MarshalJSON() ([]byte, error) {
	if m.msg == nil {
		return []byte("null"), nil
	}
	b, err := proto.Marshal(m.msg)
	if err != nil {
		return nil, err
	}
	return json.Marshal(b)
}

func (m *message[M, P]) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	var b []byte
	if err := json.Unmarshal(text, &b); err != nil {
		return err
	}
	m.msg = P(new(M))
	return proto.Unmarshal(b, m.msg)
}

// phase is how far an object has come. The zero value is the one of a record
// whose creation never ended: such an object was never shown to anybody.
type phase string

const (
	phasePlanned phase = ""
	phaseReady   phase = "ready"   // sandboxes
	phaseStopped phase = "stopped" // sandboxes
	phaseCreated phase = "created" // containers
	phaseRunning phase = "running" // containers
	phaseExited  phase = "exited"  // containers
)

// The records on disk, and what is known of them.
type (
	sandboxRecords   = store.Store[sandboxSpec, sandboxStatus]
	containerRecords = store.Store[containerSpec, containerStatus]
)

// sandboxSpec is what a sandbox is created with and keeps for its whole life:
// the pin.
type sandboxSpec struct {
	// Handler is the name as requested; "" stays "".
	Handler    string                                                             `json:"handler"`
	Definition *handler.Definition                                                `json:"definition"`
	Config     message[runtimeapi.PodSandboxConfig, *runtimeapi.PodSandboxConfig] `json:"config"`
	CreatedAt  int64                                                              `json:"createdAt"`
	Supervisor string                                                             `json:"supervisor"`
	// Boot is the boot of the node in which it was created.
	Boot string `json:"boot,omitempty"`
	// ProcessLabel and MountLabel are the pod's SELinux labels.
	ProcessLabel string      `json:"processLabel,omitempty"`
	MountLabel   string      `json:"mountLabel,omitempty"`
	Plan         sandboxPlan `json:"plan"`
	// Canary says that it is berth's own, to see whether the handler works: it has
	// no network, and nobody is told of it.
	Canary bool `json:"canary,omitempty"`
	// Pinned is nil in records of older builds.
	Pinned *pinned `json:"pinned,omitempty"`
}

// sandboxStatus is what changes.
type sandboxStatus struct {
	Phase phase `json:"phase"`
	// Stopping says that StopPodSandbox was called, Stopped that it came to its end.
	Stopping   bool            `json:"stopping,omitempty"`
	Stopped    bool            `json:"stopped,omitempty"`
	Namespaces pin.Namespaces  `json:"namespaces"`
	Network    *network.Result `json:"network,omitempty"`
	// Tried is set before CNI ADD runs, so that DEL runs after a crash.
	Tried bool           `json:"tried,omitempty"`
	PID   int            `json:"pid,omitempty"`
	Shim  *shim.Endpoint `json:"shim,omitempty"`
	// Overhead and Resources are what UpdatePodSandboxResources sent last.
	Overhead  message[runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources] `json:"overhead"`
	Resources message[runtimeapi.LinuxContainerResources, *runtimeapi.LinuxContainerResources] `json:"resources"`
}

// containerSpec is what a container is created with.
type containerSpec struct {
	Sandbox     string                                                           `json:"sandbox"`
	Config      message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig] `json:"config"`
	CreatedAt   int64                                                            `json:"createdAt"`
	ImageID     string                                                           `json:"imageID"`
	ImageRef    string                                                           `json:"imageRef"`
	ImageName   string                                                           `json:"imageName"`
	ImageTag    string                                                           `json:"imageTag,omitempty"`
	ImageChain  string                                                           `json:"imageChain"`
	Snapshotter string                                                           `json:"snapshotter"`
	CgroupsPath string                                                           `json:"cgroupsPath"`
	LogPath     string                                                           `json:"logPath,omitempty"`
	// LogDirectory is the part of LogPath that the kubelet gave; what is below it is
	// not trusted. Records of older builds do not have it.
	LogDirectory string `json:"logDirectory,omitempty"`
	StopSignal   string `json:"stopSignal"`
	// ProcessLabel and MountLabel are the container's SELinux labels.
	ProcessLabel string `json:"processLabel,omitempty"`
	MountLabel   string `json:"mountLabel,omitempty"`
	// Volumes are the images among the mounts, in the order of their directories.
	Volumes []imageVolume `json:"volumes,omitempty"`
	// DefinedVolumes are where the image asks for volumes, in the order of their
	// directories.
	DefinedVolumes []string `json:"definedVolumes,omitempty"`
}

// containerStatus is what changes.
type containerStatus struct {
	Phase      phase  `json:"phase"`
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
	Erased    bool                                                                   `json:"erased,omitempty"`
	Resources message[runtimeapi.ContainerResources, *runtimeapi.ContainerResources] `json:"resources"`
}

// exitReason is the reason that the CRI shows for an ended container.
func exitReason(code int32, oom, unknown bool) string {
	switch {
	case oom:
		return "OOMKilled"
	case unknown:
		return "Unknown"
	case code == 0:
		return "Completed"
	}
	return "Error"
}

// unknownExitCode is reported where the true code is lost.
const unknownExitCode = 255

// startFailedCode is the exit code of a container that could not be started.
const startFailedCode = 128

// failedStart is the status of a container that could not be started.
func (s *containerStatus) failedStart(cause error, now int64) {
	s.Phase, s.ExitCode, s.Reason = phaseExited, startFailedCode, "StartError"
	s.Message, s.FinishedAt = printable.Line(cause.Error()), now
}

// lostExit is the status of a container whose end nobody saw.
func (s *containerStatus) lostExit(now time.Time) {
	s.Phase, s.PID = phaseExited, 0
	s.ExitCode, s.Reason = unknownExitCode, exitReason(unknownExitCode, false, true)
	s.Message = "the container ended while nobody watched; its exit code is lost"
	s.FinishedAt = now.UnixNano()
}
