package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hangingPlugin is a CNI plugin that neither says how it is nor connects a pod as
// long as a file is there.
const hangingPlugin = `#!/bin/sh
dir="DIR"
case $CNI_COMMAND in
VERSION) echo '{"cniVersion": "1.1.0", "supportedVersions": ["1.0.0", "1.1.0"]}'; exit ;;
GC) exit ;;
esac
touch "$dir/$CNI_COMMAND"
while [ -e "$dir/hang" ]; do sleep 0.05; done
[ "$CNI_COMMAND" != ADD ]
`

// TestStatusWhileOthersHang: a kubelet that is not told the node's status in time
// gives the node up, and one that cannot list its pods loses sight of all of them.
// A shim, a network that is being made, and a plugin that was asked how it is may
// hang; nobody waits for them who did not ask for them.
func TestStatusWhileOthersHang(t *testing.T) {
	dir := t.TempDir()
	sign := filepath.Join(dir, "hang")
	b := newBed(t, testbed.Options{Config: shimConfig(t, testbed.Part(t, testbed.RuncShim)) + plugin(t, dir, "hanging", hangingPlugin)})
	atRest := b.Rest(t)
	pod := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "3600"}})

	place(t, dir, "hang")
	wake := func() { _ = os.Remove(sign) }
	defer wake()
	text := fmt.Sprintf(`{"cniVersion": "1.1.0", "name": %q, "plugins": [{"type": "hanging"}]}`, b.CNI.Name)
	testbed.Must(t, os.WriteFile(b.CNI.Path(), []byte(text), 0o600))
	b.Restart(t) // who was asked for its status is not asked again for half a minute
	shim := shimsOf(t, pod.ID)
	if len(shim) != 1 {
		t.Fatalf("the sandbox has shims %v", shim)
	}
	killAs(t, shim[0], syscall.SIGSTOP)
	resume := func() { signal(t, shim[0], syscall.SIGCONT) }
	defer resume()
	made := make(chan error, 1)
	ctx, giveUp := context.WithTimeout(t.Context(), time.Minute)
	defer giveUp()
	testbed.Eventually(t, time.Minute, func() error { return b.asks(t, filepath.Join(dir, "STATUS")) })
	go func() {
		_, err := b.Client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig("")})
		made <- err
	}()
	testbed.Eventually(t, time.Minute, func() error { return b.asks(t, filepath.Join(dir, "ADD")) })

	const rounds = 9
	slow := 0
	for range rounds {
		began := time.Now()
		b.answers(t, pod)
		if took := time.Since(began); took > 2*time.Second {
			slow++
			t.Logf("all of them took %v", took)
		}
	}
	// A machine that is busy with other things may be late now and then.
	if slow > rounds/2 {
		t.Errorf("%d of %d times the node's status and its lists took more than two seconds", slow, rounds)
	}
	giveUp()
	wake()
	testbed.Fails(t, <-made, "a sandbox came to be on a network that hung")
	resume()
	testbed.Must(t, b.CNI.Write())
	b.NothingLeft(t, atRest)
}

// asks has the node asked for its status, and says whether a plugin was called.
func (b *bed) asks(t *testing.T, note string) error {
	t.Helper()
	if _, err := b.Client.Status(testbed.Within(t, time.Minute), &runtimeapi.StatusRequest{}); err != nil {
		t.Fatalf("status: %v", err)
	}
	_, err := os.Stat(note)
	return err
}

// answers calls all that a kubelet asks every second or so.
func (b *bed) answers(t *testing.T, pod *testbed.Pod) {
	t.Helper()
	ctx := testbed.Within(t, time.Minute)
	st, err := b.Client.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil || len(st.GetStatus().GetConditions()) < 2 {
		t.Fatalf("status: %v, %v", st, err)
	}
	pods, err := b.Client.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.GetItems()) != 1 {
		t.Fatalf("list sandboxes: %v, %v", pods, err)
	}
	containers, err := b.Client.ListContainers(ctx, &runtimeapi.ListContainersRequest{})
	if err != nil || len(containers.GetContainers()) != 1 {
		t.Fatalf("list containers: %v, %v", containers, err)
	}
	testbed.Same(t, pod.Status(t).GetState(), runtimeapi.PodSandboxState_SANDBOX_READY, "the sandbox is")
	testbed.Same(t, pod.Container.Status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "the container is")
	if _, err := b.Client.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{}); err != nil {
		t.Fatalf("image file system: %v", err)
	}
}
