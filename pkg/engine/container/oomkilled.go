package container

import "github.com/berth-cri/berth/pkg/engine/pod"

// killedForMemory tells what a foreign shim may report too late, or to nobody: the
// cgroup's own count, which is there until the task is deleted, and where systemd has
// removed the cgroup with its last process, the kernel's log.
func (b *ends) killedForMemory(c *pod.Container) bool {
	return c.OOM.Load() || c.Sandbox.Runner.KilledForMemory(b.pods.Background, c.Spec().CgroupsPath)
}
