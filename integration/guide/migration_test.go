package guide

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

func TestMigrationPage(t *testing.T) {
	n := walk(t, "../../docs/migration.md", "", 8, func(t *testing.T) *node { return newMigration(t).node })
	n.live(t)
}

// migration is a node on which containerd runs the pods at the beginning of the page. The test's
// client is in place of a kubelet.
type migration struct {
	*node
	endContainerd func()
	// served is a client of berth's socket.
	served *testbed.Client
}

// withContainerd sets up containerd on the node.
const withContainerd = `
mkdir -p /etc/containerd /etc/cni/net.d
cp "$RUNC" /usr/local/sbin/runc
cp "$CONTAINERD" "$SHIM" /usr/local/bin/
rm -f /etc/cni/net.d/*
cp "$NETWORK"/* /etc/cni/net.d/
printf %s "$CONTAINERD_CONFIG" >/etc/containerd/config.toml
`

// containerdConfig is the configuration of a node, with settings that containerd needs where tests
// run. Its handler crun uses runc, because Debian's crun refuses containerd's specs.
const containerdConfig = `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = %q
[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
disable_hugetlb_controller = false
restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = [%q]
[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "/usr/local/sbin/runc"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.crun.options]
BinaryName = "/usr/local/sbin/runc"
`

func newMigration(t *testing.T) *migration {
	t.Helper()
	testbed.NeedRoot(t)
	testbed.NeedNetwork(t)
	registry, network := testbed.NewRegistry(t, testbed.RegistryOptions{}), testbed.NewCNI(t)
	pause := registry.Push(t, "guide/pause:1", testbed.Busybox(t, testbed.WithConfig(func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"sleep", "2147483647"}, nil
	})))
	m := &migration{node: enterNode(t, registry, withContainerd, "",
		"RUNC="+testbed.Part(t, testbed.Runc), "CONTAINERD="+testbed.Part(t, testbed.Containerd), "SHIM="+testbed.Part(t, testbed.RuncShim),
		"NETWORK="+network.ConfDir, "CONTAINERD_CONFIG="+fmt.Sprintf(containerdConfig, pause, network.BinDir))}
	m.more = map[string]func(*testing.T){
		"start berth": func(*testing.T) { m.serve() }, "move the kubelet": m.move, "end containerd": m.end,
	}
	t.Cleanup(m.killRest)
	m.endContainerd = m.daemon("containerd")
	t.Cleanup(m.endContainerd)
	m.answers("/run/containerd/containerd.sock")
	m.served = testbed.Dial(t, m.inside("/run/berth/berth.sock"), m.logs, m.cgroup)
	m.client = testbed.Dial(t, m.inside("/run/containerd/containerd.sock"), m.logs, m.cgroup)
	m.run(t, "", "web-1")
	m.run(t, "", "web-2")
	m.run(t, "crun", "tool")
	return m
}

// adopted is what a kubelet reads of a pod that berth adopts.
type adopted struct {
	sandbox   *runtimeapi.PodSandboxStatus
	container *runtimeapi.ContainerStatus
}

func look(t *testing.T, p *testbed.Pod) adopted {
	a := adopted{p.Status(t), p.Container.Status(t)}
	a.sandbox.RuntimeHandler = "" // each daemon has another name for it
	return a
}

// move has the kubelet call berth, which must report all pods as containerd did.
func (m *migration) move(t *testing.T) {
	before := map[string]adopted{}
	for name, pod := range m.pods {
		before[name] = look(t, pod)
	}
	// All pods share this client, which now calls berth.
	*m.client = *m.served
	for name, pod := range m.pods {
		after := look(t, pod)
		if !proto.Equal(after.sandbox, before[name].sandbox) || !proto.Equal(after.container, before[name].container) {
			t.Errorf("pod %s is\n%v\nwant, as before,\n%v", name, after, before[name])
		}
		testbed.Same(t, pod.Container.Exec(t, "echo", name), name+"\n", "pod %s prints", name)
		stats, err := m.client.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: pod.Container.ID})
		if err != nil || stats.GetStats().GetAttributes().GetId() != pod.Container.ID {
			t.Errorf("read statistics of pod %s: %v, %v", name, stats, err)
		}
	}
	pods, err := m.client.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{})
	if err != nil || len(pods.GetItems()) != len(m.pods) {
		t.Errorf("berth lists %v, %v, want all pods and no others", pods, err)
	}
}

// end stops containerd and removes its files.
func (m *migration) end(t *testing.T) {
	m.endContainerd()
	for _, path := range []string{"/run/containerd", "/var/lib/containerd", "/etc/containerd", "/usr/local/bin/containerd", "/usr/local/bin/containerd-shim-runc-v2"} {
		testbed.Check(t, os.RemoveAll(m.inside(path)))
	}
	for _, pid := range m.processes() {
		if program, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); strings.Contains(program, "containerd") {
			t.Errorf("process %d of containerd is left: %s", pid, program)
		}
	}
}
