package validate

import (
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxSeconds is the longest timeout that fits a time.Duration.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// ExecSync checks a command that runs to completion.
func ExecSync(req *runtimeapi.ExecSyncRequest) error {
	return first(
		checkID("container_id", req.GetContainerId()),
		command(req.GetCmd()),
		between("timeout", req.GetTimeout(), 0, maxSeconds),
	)
}

// Exec checks a command with streams.
func Exec(req *runtimeapi.ExecRequest) error {
	return first(
		checkID("container_id", req.GetContainerId()),
		command(req.GetCmd()),
		streams(req),
	)
}

// Attach checks the streams to attach to.
func Attach(req *runtimeapi.AttachRequest) error {
	return first(
		checkID("container_id", req.GetContainerId()),
		streams(req),
	)
}

// CheckpointContainer checks the destination of a checkpoint.
func CheckpointContainer(req *runtimeapi.CheckpointContainerRequest) error {
	path := req.GetLocation()
	return first(
		checkID("container_id", req.GetContainerId()),
		invalidIf(!filepath.IsAbs(path) || strings.HasSuffix(path, "/"), "location",
			"%s is not the absolute path of a file; give that of the archive to write", quoted(path)),
		withoutNUL("location", path),
		between("timeout", req.GetTimeout(), 0, maxSeconds),
	)
}

// Compression is the only option of CheckpointPod: the compression of the files that runsc writes.
// NoCompression and fastCompression are its values.
const (
	Compression     = "compression"
	NoCompression   = "none"
	fastCompression = "flate-best-speed"
)

// CheckpointPod checks the destination, the containers and the options of a checkpoint.
func CheckpointPod(req *runtimeapi.CheckpointPodRequest) error {
	return first(
		checkID("pod_sandbox_id", req.GetPodSandboxId()),
		absolute("output_path", req.GetOutputPath(), required),
		invalidIf(len(req.GetContainerIds()) == 0, "container_ids", "is empty; name the containers that run in the pod"),
		each("container_ids", req.GetContainerIds(), checkID),
		unique("container_ids", req.GetContainerIds()),
		checkpointOptions(req.GetOptions()),
	)
}

// RestorePod checks a checkpoint's path and the configurations of the pod and its containers. It
// accepts no options.
func RestorePod(req *runtimeapi.RestorePodRequest) error {
	var names []string
	for _, c := range req.GetContainerConfigs() {
		names = append(names, c.GetMetadata().GetName())
	}
	return first(
		absolute("checkpoint_path", req.GetCheckpointPath(), required),
		noOptions(req.GetOptions()),
		RunPodSandbox(&runtimeapi.RunPodSandboxRequest{Config: req.GetConfig()}),
		invalidIf(len(names) == 0, "container_configs", "is empty; send those of the containers in the checkpoint"),
		each("container_configs", req.GetContainerConfigs(), func(field string, c *runtimeapi.ContainerConfig) error {
			if c == nil {
				return invalid(field, "is missing; send the ContainerConfig")
			}
			return containerConfig(field, c, req.GetConfig())
		}),
		unique("container_configs", names),
	)
}

func unique(field string, all []string) error {
	seen := map[string]bool{}
	for _, one := range all {
		if seen[one] {
			return invalid(field, "has %s twice; name each once", quoted(one))
		}
		seen[one] = true
	}
	return nil
}

func checkpointOptions(options map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		switch value := options[key]; {
		case key != Compression:
			return invalid("options", "has the key %s; berth supports only %q", quoted(key), Compression)
		case value != NoCompression && value != fastCompression:
			return invalid("options", "has %s as %s; use %q or %q", quoted(value), key, NoCompression, fastCompression)
		}
	}
	return nil
}

func noOptions(options map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		return invalid("options", "has the key %s; berth supports no options", quoted(key))
	}
	return nil
}

// PortForward checks the ports. An empty list is valid: the newer protocol sends a port with each
// connection.
func PortForward(req *runtimeapi.PortForwardRequest) error {
	return first(
		checkID("pod_sandbox_id", req.GetPodSandboxId()),
		each("port", req.GetPort(), func(field string, p int32) error {
			return between(field, int64(p), 1, 65535)
		}),
	)
}

func command(cmd []string) error {
	return first(
		invalidIf(len(cmd) == 0 || cmd[0] == "", "cmd", "is empty; give the program to run and its arguments"),
		each("cmd", cmd, withoutNUL),
	)
}

// streamed is the common part of streams in Exec and Attach.
type streamed interface {
	GetTty() bool
	GetStdin() bool
	GetStdout() bool
	GetStderr() bool
}

func streams(s streamed) error {
	return first(
		invalidIf(s.GetTty() && s.GetStderr(), "stderr", "is set together with tty, which has one output; unset stderr"),
		invalidIf(!s.GetStdin() && !s.GetStdout() && !s.GetStderr(), "stdin, stdout, stderr", "none is set; set at least one"),
	)
}
