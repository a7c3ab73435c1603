package podcheckpoint

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestRefusedCheckpoints: a refused checkpoint leaves its directory as it was, and the pod runs on.
func TestRefusedCheckpoints(t *testing.T) {
	b := newBed(t, testbed.Options{})
	p, other := b.run(t, "one", "two"), b.run(t, "one")
	onRunc := b.Client.RunPod(t, testbed.PodSpec{Handler: runc, Image: b.Image, Command: []string{"sleep", "3600"}})
	ended := p.RunContainer(t, "ended", testbed.PodSpec{Image: b.Image, Command: []string{"true"}})
	ended.WaitExit(t)
	one, two := p.members[0].ID, p.members[1].ID
	empty := t.TempDir()
	full := t.TempDir()
	testbed.Must(t, os.WriteFile(filepath.Join(full, "mine"), nil, 0o600))
	for name, c := range map[string]struct {
		request *runtimeapi.CheckpointPodRequest
		code    codes.Code
		says    string
	}{
		"no such pod":             {&runtimeapi.CheckpointPodRequest{PodSandboxId: "none", OutputPath: empty, ContainerIds: []string{one}}, codes.NotFound, "none"},
		"no containers":           {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty}, codes.InvalidArgument, "container_ids"},
		"a container missing":     {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one}}, codes.FailedPrecondition, two},
		"a container twice":       {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one, two, one}}, codes.InvalidArgument, "twice"},
		"another pod's container": {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one, two, other.members[0].ID}}, codes.InvalidArgument, "belongs to another pod"},
		"an exited container":     {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one, two, ended.ID}}, codes.FailedPrecondition, "only running containers"},
		"an unknown option":       {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one, two}, Options: map[string]string{"x": "y"}}, codes.InvalidArgument, `"x"`},
		"a relative directory":    {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: "x", ContainerIds: []string{one, two}}, codes.InvalidArgument, "output_path"},
		"a missing directory":     {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: filepath.Join(empty, "none"), ContainerIds: []string{one, two}}, codes.InvalidArgument, "create it first"},
		"a full directory":        {&runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: full, ContainerIds: []string{one, two}}, codes.InvalidArgument, "is not empty"},
		"another runtime":         {&runtimeapi.CheckpointPodRequest{PodSandboxId: onRunc.ID, OutputPath: empty, ContainerIds: []string{onRunc.Container.ID}}, codes.Unimplemented, "only gVisor's runsc"},
	} {
		_, err := b.Client.CheckpointPod(testbed.Within(t, patience), c.request)
		if err == nil {
			t.Errorf("%s: the checkpoint was accepted", name)
			continue
		}
		t.Run(name, func(t *testing.T) { testbed.Refused(t, err, c.code, c.says) })
	}
	_, err := b.Client.CheckpointPod(context.WithoutCancel(t.Context()), &runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: empty, ContainerIds: []string{one, two}})
	testbed.Refused(t, err, codes.InvalidArgument, "deadline")
	if got := files(t, empty); len(got) > 0 {
		t.Errorf("refused checkpoints left files: %q", got)
	}
	if got := files(t, full); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("files in the full directory: %q, want only mine", got)
	}
	p.reaches(t, p.members[0].count(t)+2)
	// The restored pod does not need the container that has exited.
	b.restored(t, p, p.checkpointed(t)).reaches(t, 2)
}

// TestRefusedRestores: a refused restore leaves nothing on the host.
func TestRefusedRestores(t *testing.T) {
	b := newBed(t, testbed.Options{})
	other := b.Registry.Push(t, "podcheckpoint/other:1", testbed.Busybox(t, testbed.WithUser("7")))
	b.Client.Pull(t, gvisor, other)
	p := b.run(t, "one", "two")
	p.reaches(t, 2)
	dir := p.checkpointed(t)
	p.Remove(t)
	atRest := b.Snapshot(t)
	for name, c := range map[string]struct {
		change func(r *runtimeapi.RestorePodRequest)
		code   codes.Code
		says   []string
	}{
		"no checkpoint":          {func(r *runtimeapi.RestorePodRequest) { r.CheckpointPath = t.TempDir() }, codes.InvalidArgument, []string{"has no checkpoint of a pod"}},
		"an unknown handler":     {func(r *runtimeapi.RestorePodRequest) { r.RuntimeHandler = "none" }, codes.InvalidArgument, []string{"none"}},
		"another runtime":        {func(r *runtimeapi.RestorePodRequest) { r.RuntimeHandler = runc }, codes.Unimplemented, []string{`"runc"`, "only gVisor's runsc", "use a handler that supports it (runsc)"}},
		"an unknown option":      {func(r *runtimeapi.RestorePodRequest) { r.Options = map[string]string{"x": "y"} }, codes.InvalidArgument, []string{`"x"`}},
		"no containers":          {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = nil }, codes.InvalidArgument, []string{"container_configs"}},
		"a container missing":    {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs = r.ContainerConfigs[:1] }, codes.InvalidArgument, []string{`"two" is missing`}},
		"a container twice":      {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1] = r.ContainerConfigs[0] }, codes.InvalidArgument, []string{"twice"}},
		"another container name": {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Metadata.Name = "three" }, codes.InvalidArgument, []string{`"one" is missing`, `no container "three"`}},
		"another image":          {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Image.Image = other }, codes.InvalidArgument, []string{`container "one" ran image`}},
		"a missing image":        {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[0].Image.Image = "registry.test/none:1" }, codes.FailedPrecondition, []string{"pull it first"}},
		"another command":        {func(r *runtimeapi.RestorePodRequest) { r.ContainerConfigs[1].Command[0] = "ash" }, codes.InvalidArgument, []string{`container "two": command differs`}},
		"no pod config":          {func(r *runtimeapi.RestorePodRequest) { r.Config = nil }, codes.InvalidArgument, []string{"config"}},
	} {
		r := b.request(p, dir)
		c.change(r)
		_, _, err := b.Client.TryRestore(t, r)
		t.Run(name, func(t *testing.T) { testbed.Refused(t, err, c.code, c.says...) })
	}
	_, err := b.Client.RestorePod(context.WithoutCancel(t.Context()), b.request(p, dir))
	testbed.Refused(t, err, codes.InvalidArgument, "deadline")
	b.NoLeaks(t, atRest)
	damaged := filepath.Join(dir, "images", "pages.img")
	info, err := os.Stat(damaged)
	testbed.Must(t, err)
	testbed.Must(t, os.Truncate(damaged, info.Size()/2))
	_, _, err = b.Client.TryRestore(t, b.request(p, dir))
	testbed.Refused(t, err, codes.InvalidArgument, "the checkpoint is damaged", "pages.img", "make another")
	b.NoLeaks(t, atRest)
}
