package kubelet

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// resize changes a container's limits while it runs.
func (b *bed) resize(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		if class.sandboxed {
			continue // gVisor does not support new limits
		}
		n.CreateOf(t, class.name, `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, command: [sleep, "3600"], resources: {requests: {cpu: 50m, memory: 32Mi}, limits: {cpu: 100m, memory: 64Mi}}}
`)
		before := n.WaitReady(t, class.name).Status.ContainerStatuses[0]
		n.Kubectl(t, "patch", "pod", class.name, "--subresource=resize", "--patch",
			`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"100m","memory":"48Mi"},"limits":{"cpu":"300m","memory":"96Mi"}}}]}}`)
		pod := n.WaitPod(t, class.name, func(pod *corev1.Pod) error {
			resources := pod.Status.ContainerStatuses[0].Resources
			if resources == nil || resources.Limits.Memory().String() != "96Mi" || resources.Limits.Cpu().String() != "300m" {
				return fmt.Errorf("the container has %+v, the pod %+v", resources, pod.Status.Conditions)
			}
			return nil
		})
		after := pod.Status.ContainerStatuses[0]
		if after.ContainerID != before.ContainerID || after.RestartCount != 0 {
			t.Errorf("%s: the container was restarted: %+v", class.name, after)
		}
		cgroup := b.ContainerCgroup(pod, after)
		if limit := MemoryLimit(t, cgroup); limit != 96<<20 {
			t.Errorf("%s: the memory limit of the container is %d, want 96 MiB", class.name, limit)
		}
		if quota, period := CPULimit(t, cgroup); quota*10 != period*3 {
			t.Errorf("%s: the CPU limit of the container is %d µs of %d, want 300m", class.name, quota, period)
		}
	}
}

// summary has the fields of a kubelet's /stats/summary that are checked.
type summary struct {
	Node struct {
		Runtime struct{ ImageFs, ContainerFs *usage }
	}
	Pods []struct {
		PodRef           struct{ Name, Namespace string }
		CPU              *usage
		Memory           *usage
		Network          *usage
		EphemeralStorage *usage `json:"ephemeral-storage"`
		ProcessStats     *usage `json:"process_stats"`
		Containers       []struct {
			Name         string
			CPU, Memory  *usage
			Rootfs, Logs *usage
		}
	}
}

type usage struct {
	UsageCoreNanoSeconds, UsageNanoCores, WorkingSetBytes, UsedBytes, CapacityBytes, RxBytes, TxBytes *uint64
	ProcessCount                                                                                      *uint64 `json:"process_count"`
}

func (b *bed) summary() (*summary, error) {
	s := new(summary)
	return s, b.get("/api/v1/nodes/"+NodeName+"/proxy/stats/summary", s)
}

// busy is a pod that writes a file, writes to its log and uses some CPU time.
const busy = `
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: IMAGE, command: [sh, -c, 'head -c 3000000 /dev/zero > /file; head -c 100000 /dev/zero | tr "\\0" x; while :; do i=$((i+1)); [ $((i % 20000)) != 0 ] || sleep 0.1; done']}
`

// statistics checks the kubelet's statistics of each pod and of the image and container file
// systems.
func (b *bed) statistics(t *testing.T, n *Namespace) {
	for _, class := range b.classes {
		n.CreateOf(t, class.name, busy)
	}
	for _, class := range b.classes {
		n.WaitReady(t, class.name)
		testbed.Eventually(t, patience, func() error { return b.numbersOf(n, class) })
	}
	s, err := b.summary()
	testbed.Must(t, err)
	for name, fs := range map[string]*usage{"image": s.Node.Runtime.ImageFs, "container": s.Node.Runtime.ContainerFs} {
		if fs == nil || fs.UsedBytes == nil || *fs.UsedBytes < 1<<20 || fs.CapacityBytes == nil {
			t.Errorf("the %s file system uses %+v", name, fs)
		}
	}
	testbed.Eventually(t, patience, func() error {
		metrics, stderr, err := n.TryKubectl(t, "", "get", "--raw", "/api/v1/nodes/"+NodeName+"/proxy/metrics/resource")
		for _, class := range b.classes {
			if !strings.Contains(metrics, fmt.Sprintf(`pod_memory_working_set_bytes{namespace=%q,pod=%q}`, n.Name, class.name)) {
				return fmt.Errorf("/metrics/resource has no pod %s: %v: %s", class.name, err, stderr)
			}
		}
		return nil
	})
}

// numbersOf returns an error if a number of a pod is missing or implausibly low.
func (b *bed) numbersOf(n *Namespace, class class) error {
	s, err := b.summary()
	if err != nil {
		return err
	}
	for _, pod := range s.Pods {
		if pod.PodRef.Name != class.name || pod.PodRef.Namespace != n.Name {
			continue
		}
		if len(pod.Containers) != 1 {
			return fmt.Errorf("pod %s has %d containers", class.name, len(pod.Containers))
		}
		container := pod.Containers[0]
		for _, number := range []struct {
			name  string
			of    *usage
			value func(*usage) *uint64
			least uint64
		}{
			{"CPU time of the pod", pod.CPU, func(u *usage) *uint64 { return u.UsageCoreNanoSeconds }, 1_000_000},
			{"memory of the pod", pod.Memory, func(u *usage) *uint64 { return u.WorkingSetBytes }, 100_000},
			{"storage of the pod", pod.EphemeralStorage, func(u *usage) *uint64 { return u.UsedBytes }, 3_000_000},
			{"CPU time", container.CPU, func(u *usage) *uint64 { return u.UsageCoreNanoSeconds }, 1_000_000},
			{"CPU use", container.CPU, func(u *usage) *uint64 { return u.UsageNanoCores }, 1},
			{"memory", container.Memory, func(u *usage) *uint64 { return u.WorkingSetBytes }, 100_000},
			{"root file system", container.Rootfs, func(u *usage) *uint64 { return u.UsedBytes }, 3_000_000},
			{"logs", container.Logs, func(u *usage) *uint64 { return u.UsedBytes }, 100_000},
		} {
			if number.of == nil || number.value(number.of) == nil {
				return fmt.Errorf("pod %s has no number for its %s", class.name, number.name)
			}
			if got := *number.value(number.of); got < number.least {
				return fmt.Errorf("pod %s: its %s is %d, less than %d", class.name, number.name, got, number.least)
			}
		}
		return nil
	}
	return fmt.Errorf("no numbers for pod %s", class.name)
}
