package validate

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// controls is a value of which each byte needs four when it is quoted.
var controls = strings.Repeat("\x01", 4000)

func TestCheckpointLocation(t *testing.T) {
	checkRefused(t, CheckpointContainer(&runtimeapi.CheckpointContainerRequest{ContainerId: "c", Location: controls}), "location")
}

func TestCheckpointPod(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*runtimeapi.CheckpointPodRequest)
		field  string
	}{
		"valid":                     {func(*runtimeapi.CheckpointPodRequest) {}, ""},
		"no pod":                    {func(r *runtimeapi.CheckpointPodRequest) { r.PodSandboxId = "" }, "pod_sandbox_id"},
		"no directory":              {func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = "" }, "output_path"},
		"a relative directory":      {func(r *runtimeapi.CheckpointPodRequest) { r.OutputPath = "a/b" }, "output_path"},
		"no containers":             {func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds = nil }, "container_ids"},
		"a container without an ID": {func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds[1] = "" }, "container_ids[1]"},
		"one container twice":       {func(r *runtimeapi.CheckpointPodRequest) { r.ContainerIds[1] = "1" }, "container_ids"},
		"compressed":                {func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{Compression: fastCompression} }, ""},
		"unknown compression":       {func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{Compression: "x"} }, "options"},
		"an unknown option":         {func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{"a": ""} }, "options"},
		"a long option":             {func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{controls: ""} }, "options"},
		"a long compression":        {func(r *runtimeapi.CheckpointPodRequest) { r.Options = map[string]string{Compression: controls} }, "options"},
	} {
		r := &runtimeapi.CheckpointPodRequest{PodSandboxId: "p", OutputPath: "/a", ContainerIds: []string{"1", "2"}}
		test.change(r)
		t.Run(name, func(t *testing.T) { checkCheckpoint(t, CheckpointPod(r), test.field) })
	}
}

func TestRestorePod(t *testing.T) {
	container := func(name string) *runtimeapi.ContainerConfig {
		return &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: "i"}}
	}
	for name, test := range map[string]struct {
		change func(*runtimeapi.RestorePodRequest)
		field  string
	}{
		"valid":                      {func(*runtimeapi.RestorePodRequest) {}, ""},
		"no checkpoint":              {func(r *runtimeapi.RestorePodRequest) { r.CheckpointPath = "" }, "checkpoint_path"},
		"no pod":                     {func(r *runtimeapi.RestorePodRequest) { r.Config = nil }, "config"},
		"a pod without a name":       {func(r *runtimeapi.RestorePodRequest) { r.Config.Metadata.Name = "" }, "config.metadata.name"},
		"no containers":              {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = nil }, "container_configs"},
		"an empty container":         {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1] = nil }, "container_configs[1]"},
		"a container without a name": {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Metadata = nil }, "container_configs[0].metadata"},
		"two containers of one name": {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1] = r.ContainerConfigs[0] }, "container_configs"},
		"an unknown option":          {func(r *runtimeapi.RestorePodRequest) { r.Options = map[string]string{"a": ""} }, "options"},
		"a long option":              {func(r *runtimeapi.RestorePodRequest) { r.Options = map[string]string{controls: ""} }, "options"},
	} {
		r := &runtimeapi.RestorePodRequest{
			CheckpointPath:   "/a",
			Config:           &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Namespace: "n", Uid: "u"}},
			ContainerConfigs: []*runtimeapi.ContainerConfig{container("one"), container("two")},
		}
		test.change(r)
		t.Run(name, func(t *testing.T) { checkCheckpoint(t, RestorePod(r), test.field) })
	}
}

func checkCheckpoint(t *testing.T, err error, field string) {
	t.Helper()
	if field != "" {
		checkRefused(t, err, field)
	} else if err != nil {
		t.Error(err)
	}
}
