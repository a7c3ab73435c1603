//go:build berth_vm

package inside

import (
	"os"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestCgroupPrefix changes the prefix of scopes while pods run, and kills the daemon. Pods of both
// prefixes have scopes with their prefix, also for new containers; statistics and OOM kills are
// found there; and no scope is left after the pods.
func TestCgroupPrefix(t *testing.T) {
	const dropIn = "/etc/berth/conf.d/prefix.toml"
	n := found(t)
	spec := testbed.PodSpec{
		Image: n.Image, Command: []string{"sleep", "100000"},
		Sandbox: func(c *runtimeapi.PodSandboxConfig) {
			c.Linux.CgroupParent = "/agents.slice/agents-pod1.slice"
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
		},
		Container: func(c *runtimeapi.ContainerConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
			c.Linux.Resources.MemoryLimitInBytes = 32 << 20
		},
	}
	pods := map[string][]*testbed.Pod{}
	for _, prefix := range []string{"berth", "cri-containerd"} {
		if prefix != "berth" {
			write(t, dropIn, "[engine]\ncgroup_prefix = \""+prefix+"\"\n")
			run(t, "berth", "reload", "--wait")
		}
		for _, handler := range both {
			spec.Handler = handler
			pods[prefix] = append(pods[prefix], n.client.RunPod(t, spec))
		}
	}
	pid := unit(t, "MainPID")
	run(t, "kill", "-KILL", pid)
	otherPID(t, n.client, pid)
	for prefix, all := range pods {
		for _, p := range all {
			late := p.RunContainer(t, "late", spec)
			ids := []string{p.ID, p.Container.ID, late.ID}
			for _, id := range ids {
				testbed.Same(t, scopes(t, id), prefix+"-"+id+".scope", "%s: with the prefix %s the scope is", p.Handler, prefix)
			}
			r, err := n.client.PodSandboxStats(t.Context(), &runtimeapi.PodSandboxStatsRequest{PodSandboxId: p.ID})
			if linux := r.GetStats().GetLinux(); err != nil || len(linux.GetContainers()) != 2 || linux.GetProcess().GetProcessCount().GetValue() != 3 {
				t.Errorf("%s: with the prefix %s the statistics of the pod are %v, %v", p.Handler, prefix, linux, err)
			}
			greedy := spec
			greedy.Command = []string{"tail", "/dev/zero"}
			c := p.RunContainer(t, "greedy", greedy)
			if st := c.WaitExit(t); st.GetReason() != "OOMKilled" {
				t.Errorf("%s: with the prefix %s a container without memory exited with %d, %s, want OOMKilled", p.Handler, prefix, st.GetExitCode(), st.GetReason())
			}
			p.Stop(t)
			p.Remove(t)
			for _, id := range append(ids, c.ID) {
				if left := scopes(t, id); left != "" {
					t.Errorf("%s: with the prefix %s the scope %q is left after the pod", p.Handler, prefix, left)
				}
			}
		}
	}
	testbed.Must(t, os.Remove(dropIn))
	run(t, "berth", "reload", "--wait")
}

// scopes returns the scopes with an ID in their names.
func scopes(t *testing.T, id string) string {
	t.Helper()
	var names []string
	for line := range strings.Lines(run(t, "systemctl", "list-units", "--type=scope", "--no-legend", "--plain", "*"+id+"*")) {
		names = append(names, strings.Fields(line)[0])
	}
	return strings.Join(names, " ")
}
