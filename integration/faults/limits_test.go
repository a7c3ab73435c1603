package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// plugged starts berth with a single CNI plugin, which writes each command to the file
// calls. ADD hangs while the file hang exists, DEL fails while hang.del exists.
func plugged(t *testing.T, runtimes map[string]string, config string) (b *bed, calls, hang string) {
	t.Helper()
	dir := t.TempDir()
	calls, hang = filepath.Join(dir, "calls"), filepath.Join(dir, "hang")
	script := fmt.Sprintf("#!/bin/sh\necho \"$CNI_COMMAND\" >>%s\nwhile [ -e %[2]s ] && [ \"$CNI_COMMAND\" = ADD ]; do sleep 0.1; done\n"+
		"if [ -e %[2]s.del ] && [ \"$CNI_COMMAND\" = DEL ]; then exit 1; fi\n"+
		"echo '{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"10.253.253.2/24\"}]}'\n", calls, hang)
	testbed.Must(t, os.WriteFile(filepath.Join(dir, "noting"), []byte(script), 0o755))
	b = newBed(t, testbed.Options{Runtimes: runtimes, DefaultRuntime: "runc", Config: config + fmt.Sprintf("[cni]\nbin_dirs = [%q]\n", dir)})
	testbed.Must(t, os.WriteFile(b.CNI.Path(), []byte(`{"cniVersion": "1.0.0", "name": "noting", "plugins": [{"type": "noting"}]}`), 0o600))
	b.networkReady(t, true)
	return b, calls, hang
}

// TestRefusedBeforeAnySideEffect requests features that gVisor does not have. The
// requests must be refused without a namespace, call of a plugin, directory or record.
func TestRefusedBeforeAnySideEffect(t *testing.T) {
	b, calls, _ := plugged(t, map[string]string{"runc": testbed.Part(t, testbed.Runc), "gvisor": testbed.Part(t, testbed.Runsc)},
		fmt.Sprintf("[runtimes.queued]\nruntime_path = %q\nmax_parallel_starts = 1\n", testbed.Part(t, testbed.Runsc)))
	atRest := b.Rest(t)
	testbed.Mustf(t, os.Remove(calls), "the pod of Rest did not call the plugin")
	node := runtimeapi.NamespaceMode_NODE
	options := func(c *runtimeapi.PodSandboxConfig) *runtimeapi.NamespaceOption {
		return c.Linux.SecurityContext.NamespaceOptions
	}
	for feature, ask := range map[string]func(*runtimeapi.PodSandboxConfig){
		"hostNetwork":      func(c *runtimeapi.PodSandboxConfig) { options(c).Network, c.Hostname = node, "" },
		"hostPID":          func(c *runtimeapi.PodSandboxConfig) { options(c).Pid = node },
		"hostIPC":          func(c *runtimeapi.PodSandboxConfig) { options(c).Ipc = node },
		"a user namespace": withUserNS,
	} {
		for _, handler := range []string{"gvisor", "queued"} {
			config := b.Client.SandboxConfig("")
			ask(config)
			_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
			testbed.Refused(t, err, codes.FailedPrecondition, fmt.Sprintf("handler %q does not support %s", handler, feature), "no ready handler of this node with a kernel for each pod supports it")
		}
	}
	b.NoLeaks(t, atRest)
	if made, err := os.ReadFile(calls); err == nil {
		t.Errorf("the plugin was called: %s", made)
	}

	pod := b.Client.RunPod(t, testbed.PodSpec{Handler: "gvisor", Image: b.Image, Command: []string{"sleep", "1000"}})
	// The process that waits for the container's exit starts a moment after the container.
	testbed.Eventually(t, time.Minute, func() error {
		lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, file := range lines {
			if line, _ := os.ReadFile(file); strings.Contains(string(line), "\x00wait\x00"+pod.Container.ID) {
				return nil
			}
		}
		return errors.Join(err, errors.New("no process waits for the container's exit"))
	})
	withPod := b.Snapshot(t)
	for feature, ask := range map[string]func(*runtimeapi.ContainerConfig){
		"the PID namespace of another": func(c *runtimeapi.ContainerConfig) {
			o := c.Linux.SecurityContext.NamespaceOptions
			o.Pid, o.TargetId = runtimeapi.NamespaceMode_TARGET, pod.Container.ID
		},
		"recursive read-only mounts": func(c *runtimeapi.ContainerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/v", HostPath: t.TempDir(), Readonly: true, RecursiveReadOnly: true})
		},
		"mount propagation Bidirectional": func(c *runtimeapi.ContainerConfig) {
			c.Mounts = append(c.Mounts, &runtimeapi.Mount{ContainerPath: "/v", HostPath: t.TempDir(), Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL})
		},
	} {
		config := b.Client.ContainerConfig("refused", b.Image, "true")
		ask(config)
		_, err := pod.TryCreate(t, config)
		testbed.Refused(t, err, codes.FailedPrecondition, `handler "gvisor" does not support `+feature, "no ready handler of this node with a kernel for each pod supports it")
		if rro := strings.HasPrefix(feature, "recursive"); err != nil && rro && !strings.Contains(err.Error(), "desc = RROUnsupported: ") {
			t.Errorf("the message does not begin with RROUnsupported, which the kubelet needs: %v", err)
		}
	}
	b.NoLeaks(t, withPod)
	b.NothingLeft(t, atRest)
}

// TestLimits tests the limits of a handler. While the network hangs, starts wait in the
// queue, are refused, or fail after start_timeout and leave nothing.
func TestLimits(t *testing.T) {
	b, calls, hang := plugged(t, map[string]string{"runc": testbed.Part(t, testbed.Runc)}, fmt.Sprintf(
		"[runtimes.held]\nruntime_path = %q\nmax_pods = 2\nmax_parallel_starts = 1\nmax_queued_starts = 1\nstart_timeout = \"5s\"\n", testbed.Part(t, testbed.Runc)))
	atRest := b.Rest(t)
	testbed.Must(t, os.WriteFile(hang, nil, 0o600))
	run := func() error {
		_, err := b.Client.RunPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: "held"})
		return err
	}
	ended := make(chan error, 3)
	for range 3 {
		go func() { ended <- run() }()
	}
	// One of the starts exceeds max_pods. The others, one of which is queued, exceed start_timeout.
	testbed.Refused(t, <-ended, codes.ResourceExhausted, `handler "held": pods running or being created: 2,`, "max_pods is 2", "[runtimes.held]")
	for range 2 {
		testbed.Refused(t, <-ended, codes.DeadlineExceeded, `handler "held": the sandbox was not ready within start_timeout = 5s`, "[runtimes.held]")
	}
	if made, _ := os.ReadFile(calls); strings.Count(string(made), "ADD") != 2 || !strings.HasSuffix(string(made), "DEL\n") {
		t.Errorf("the calls of the plugin are %q", made)
	}
	b.NothingLeft(t, atRest)

	testbed.Must(t, os.Remove(hang))
	for range 2 {
		testbed.Check(t, run())
	}
	b.Restart(t)
	testbed.Refused(t, run(), codes.ResourceExhausted, "pods running or being created: 2,")

	// A pod whose stop failed still counts for max_pods; a stopped pod does not.
	listed, err := b.Client.ListPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.ListPodSandboxRequest{})
	testbed.Must(t, err)
	stop := func() error {
		_, err := b.Client.StopPodSandbox(testbed.Within(t, time.Minute), &runtimeapi.StopPodSandboxRequest{PodSandboxId: listed.GetItems()[0].GetId()})
		return err
	}
	testbed.Must(t, os.WriteFile(hang+".del", nil, 0o600))
	testbed.Fails(t, stop(), "the stop succeeded though the plugin failed to disconnect the pod")
	testbed.Refused(t, run(), codes.ResourceExhausted, "pods running or being created: 2,")
	testbed.Must(t, os.Remove(hang+".del"))
	for range 2 {
		testbed.Check(t, stop())
	}
	testbed.Checkf(t, run(), "start after the stop of a pod")
	testbed.Refused(t, run(), codes.ResourceExhausted, "pods running or being created: 2,")
	// After a reboot the kubelet starts new pods before it removes the old ones.
	b.PowerCut(t)
	b.Start(t)
	for range 2 {
		testbed.Checkf(t, run(), "start after a reboot")
	}
	testbed.Refused(t, run(), codes.ResourceExhausted, "pods running or being created: 2,")
	b.NothingLeft(t, atRest)
	testbed.Check(t, run())
	b.NothingLeft(t, atRest)
}
