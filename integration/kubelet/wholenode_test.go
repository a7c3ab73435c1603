//go:build berth_vm

package kubelet

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestWholeNode needs a node of its own: it tests cgroup v2 under systemd, swap, and a node that
// runs out of memory.
func TestWholeNode(t *testing.T) {
	b := newBedOf(t, Options{
		FeatureGates: map[string]bool{"PodAndContainerStatsFromCRI": true},
		Kubelet: map[string]any{
			// The node accepts pods again soon after an eviction.
			"evictionPressureTransitionPeriod": "5s",
		},
	})
	b.pods(t, "handlers", "resize")
	for name, check := range map[string]func(*testing.T, *Namespace){
		"resize of a pod": b.resizePod, "pressure": b.pressure, "described": b.described,
	} {
		t.Run(name, func(t *testing.T) { check(t, b.NewNamespace(t, b.berth.Image)) })
	}
	// swap comes after the resizes, because kubelets do not resize containers that may be swapped.
	t.Run("swap", func(t *testing.T) { b.swap(t, b.NewNamespace(t, b.berth.Image)) })
	// Eviction is the last check, because it may evict any pod.
	t.Run("eviction", func(t *testing.T) { b.eviction(t, b.NewNamespace(t, b.berth.Image)) })
}

// swapOn gives the node swap.
func swapOn(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "swap")
	for _, command := range [][]string{
		{"dd", "if=/dev/zero", "of=" + file, "bs=1M", "count=256", "status=none"}, {"chmod", "600", file}, {"mkswap", "-q", file}, {"swapon", file},
	} {
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("swapoff", file).CombinedOutput(); err != nil {
			t.Errorf("swapoff: %v\n%s", err, out)
		}
	})
}

// resizePod changes the limits of a pod as a whole while it runs.
func (b *bed) resizePod(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		if class.sandboxed {
			continue // gVisor does not support new limits
		}
		n.CreateOf(t, class.name, `
  terminationGracePeriodSeconds: 1
  resources: {requests: {cpu: 50m, memory: 64Mi}, limits: {cpu: 200m, memory: 128Mi}}
  containers:
  - {name: main, image: IMAGE, command: [sleep, "3600"]}
`)
		before := n.WaitReady(t, class.name)
		if limit := MemoryLimit(t, b.PodCgroup(before)); limit != 128<<20 {
			t.Errorf("%s: the memory limit of the pod is %d, want 128 MiB", class.name, limit)
		}
		n.Kubectl(t, "patch", "pod", class.name, "--subresource=resize", "--patch",
			`{"spec":{"resources":{"requests":{"cpu":"100m","memory":"64Mi"},"limits":{"cpu":"300m","memory":"192Mi"}}}}`)
		testbed.Eventually(t, patience, func() error {
			if limit := MemoryLimit(t, b.PodCgroup(before)); limit != 192<<20 {
				return fmt.Errorf("%s: the memory limit of the pod is %d, want 192 MiB", class.name, limit)
			}
			if quota, period := CPULimit(t, b.PodCgroup(before)); quota*10 != period*3 {
				return fmt.Errorf("%s: the CPU limit of the pod is %d µs of %d, want 300m", class.name, quota, period)
			}
			return nil
		})
		if after := n.Pod(t, class.name).Status.ContainerStatuses[0]; after.RestartCount != 0 {
			t.Errorf("%s: the container was restarted: %+v", class.name, after)
		}
	}
}

// pressure checks that the kubelet reports pressure stall information (PSI) of a pod and its
// container.
func (b *bed) pressure(t *testing.T, n *Namespace) {
	n.CreatePod(t, "throttled", `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, 'while :; do :; done'], resources: {limits: {cpu: 20m}}}
`)
	n.WaitReady(t, "throttled")
	type pressure struct{ Some struct{ Total uint64 } }
	type used struct{ PSI *pressure }
	testbed.Eventually(t, patience, func() error {
		var s struct {
			Pods []struct {
				PodRef     struct{ Name, Namespace string }
				CPU        used
				Memory     used
				Containers []struct{ CPU, Memory used }
			}
		}
		if err := b.get("/api/v1/nodes/"+NodeName+"/proxy/stats/summary", &s); err != nil {
			return err
		}
		for _, pod := range s.Pods {
			if pod.PodRef.Namespace != n.Name || len(pod.Containers) != 1 {
				continue
			}
			main := pod.Containers[0]
			switch {
			case pod.CPU.PSI == nil || main.CPU.PSI == nil || pod.Memory.PSI == nil || main.Memory.PSI == nil:
				return fmt.Errorf("the pod or its container has no PSI: %+v", pod)
			case main.CPU.PSI.Some.Total == 0:
				return fmt.Errorf("the throttled container has no CPU pressure: %+v", main.CPU.PSI)
			}
			return nil
		}
		return fmt.Errorf("/stats/summary does not have the pod: %+v", s.Pods)
	})
}

// swap checks memory.swap.max with LimitedSwap: a burstable container may swap, a guaranteed one
// may not.
func (b *bed) swap(t *testing.T, n *Namespace) {
	swapOn(t)
	b.node.config["memorySwap"] = map[string]any{"swapBehavior": "LimitedSwap"}
	b.RestartKubelet(t, b.berth.Socket)
	n.Create(t, `
apiVersion: v1
kind: Pod
metadata: {name: burstable}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"], resources: {requests: {memory: 512Mi}}}]
---
apiVersion: v1
kind: Pod
metadata: {name: guaranteed}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: IMAGE, command: [sleep, "3600"], resources: {limits: {memory: 64Mi, cpu: 100m}}}]
`)
	for name, want := range map[string]bool{"burstable": true, "guaranteed": false} {
		pod := n.WaitReady(t, name)
		cgroup := b.ContainerCgroup(pod, pod.Status.ContainerStatuses[0])
		if most := numbers(t, filepath.Join("/sys/fs/cgroup", cgroup, "memory.swap.max"))[0]; most > 0 != want {
			t.Errorf("memory.swap.max of the %s container is %d; more than 0: want %v", name, most, want)
		}
	}
}

// described checks the output of kubectl describe for a container that ran out of memory. The exit
// code is not the shell's 5: the kubelet sets memory.oom.group, so the kernel kills all processes.
func (b *bed) described(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		if class.sandboxed {
			continue // the runtime enforces only the limit of the pod
		}
		n.CreateOf(t, class.name, `
  restartPolicy: Never
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, 'tail /dev/zero; exit 5'], resources: {limits: {memory: 32Mi}}}
`)
		n.WaitPhase(t, class.name, corev1.PodFailed)
		told := n.Kubectl(t, "describe", "pod", class.name)
		if !strings.Contains(strings.Join(strings.Fields(told), " "), "Reason: OOMKilled Exit Code: 137") {
			t.Errorf("kubectl describe does not print OOMKilled and 137:\n%s", told)
		}
	}
}

// eviction has a pod use more memory than the kubelet's eviction threshold leaves, and expects that
// the pod is evicted.
func (b *bed) eviction(t *testing.T, n *Namespace) {
	var s struct {
		Node struct {
			Memory struct{ AvailableBytes uint64 }
		}
	}
	if err := b.get("/api/v1/nodes/"+NodeName+"/proxy/stats/summary", &s); err != nil || s.Node.Memory.AvailableBytes == 0 {
		t.Fatalf("the node's memory: %+v, %v", s, err)
	}
	const spared = 500 << 20
	b.node.config["evictionHard"] = map[string]any{
		"memory.available": fmt.Sprint(s.Node.Memory.AvailableBytes - spared), "nodefs.available": "0%", "imagefs.available": "0%",
	}
	b.RestartKubelet(t, b.berth.Socket)
	n.CreatePod(t, "greedy", `
  restartPolicy: Never
  volumes: [{name: memory, emptyDir: {medium: Memory, sizeLimit: 3Gi}}]
  containers:
  - name: main
    image: IMAGE
    command: [sh, -c, 'i=0; while [ $i -lt 3000 ]; do dd if=/dev/zero of=/memory/$i bs=1M count=50 2>/dev/null; i=$((i+1)); sleep 1; done']
    volumeMounts: [{name: memory, mountPath: /memory}]
`)
	pod := n.WaitPhase(t, "greedy", corev1.PodFailed)
	if pod.Status.Reason != "Evicted" || !strings.Contains(pod.Status.Message, "memory") {
		t.Errorf("the pod ended as %q, want Evicted for its memory: %s", pod.Status.Reason, pod.Status.Message)
	}
	if _, err := b.Node(NodeName); err != nil {
		t.Error(err)
	}
}
