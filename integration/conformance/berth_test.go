package conformance_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// gvisorLacks is what gVisor cannot do, with the reason: its containers run on a kernel of its
// own, in one process of the host.
var gvisorLacks = map[conformance.Ability]string{
	conformance.HostNetwork:     "its network stack is its own unless the handler sets --network=host",
	conformance.HostIPC:         "its kernel has IPC objects of its own",
	conformance.HostPID:         "its kernel has processes of its own",
	conformance.HostProcesses:   "processes and namespaces of its containers do not exist on the host",
	conformance.TargetPID:       "runsc joins PID namespaces of whole sandboxes only",
	conformance.ExecDescendants: "runsc kill kills one process or all of a container",
	conformance.OOMReport:       "the limit of one container is not enforced; TestGVisorSandboxEnds checks that of the pod",
	conformance.CgroupPerCtr:    "all containers of a pod run in the cgroup of the sandbox",
	conformance.LiveUpdate:      "runsc update changes the sandbox's first container, and records the limits of all others",
	conformance.SeccompReport:   "the runtime's default is not applied: its kernel is the filter",
	conformance.MaskedPaths:     "masked and read-only paths are not applied, its /proc shows nothing of the host",
	conformance.Propagation:     "its mounts do not exist on the host",
	conformance.MessageQueues:   "it has no mqueue file system",
	conformance.Sysctls:         "its kernel does not take them from the spec",
	conformance.Labels:          "its kernel has neither AppArmor nor SELinux, and the host sees one process",
	conformance.UserNamespaces:  "its kernel has users of its own, and runsc cannot join an existing user namespace",
}

// oldGVisorLacks is what versions of gVisor without the command features also cannot do.
var oldGVisorLacks = map[conformance.Ability]string{
	conformance.SeccompExec:     "the first process of a container is filtered, but not an exec",
	conformance.NoNewPrivReport: "its /proc/self/status has no such field",
}

// lacksOfGVisor is what this binary of gVisor cannot do.
func lacksOfGVisor(t *testing.T, runsc string) map[conformance.Ability]string {
	t.Helper()
	lacks := maps.Clone(gvisorLacks)
	if err := exec.CommandContext(t.Context(), runsc, "features").Run(); err != nil {
		maps.Copy(lacks, oldGVisorLacks)
	}
	return lacks
}

// shimLacks is what berth cannot do with containerd's runc shim.
var shimLacks = map[conformance.Ability]string{
	conformance.ExecDescendants: "the shim kills only the command, and only the shim knows its descendants",
}

// saysSo fails unless berth reports each capability below as unsupported if lacks has its ability,
// which the suite then leaves out for the handler, and otherwise as supported.
func saysSo(t *testing.T, b *testbed.Berth, handler string, lacks map[conformance.Ability]string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		status, err := b.Client.Status(t.Context(), &runtimeapi.StatusRequest{Verbose: true})
		if err != nil {
			return err
		}
		type told struct {
			Name         string
			Capabilities capability.Table
		}
		var all struct{ Handlers []told }
		if err := json.Unmarshal([]byte(status.GetInfo()["handlers"]), &all); err != nil {
			return err
		}
		i := slices.IndexFunc(all.Handlers, func(h told) bool { return h.Name == handler })
		if i < 0 {
			return fmt.Errorf("the status does not list handler %s", handler)
		}
		for ability, name := range map[conformance.Ability]capability.Name{
			conformance.HostNetwork: capability.HostNetwork, conformance.HostIPC: capability.HostIPC, conformance.HostPID: capability.HostPID,
			conformance.Propagation: capability.MountPropagation, conformance.LiveUpdate: capability.InPlaceResize,
			conformance.Sysctls: capability.Sysctls, conformance.UserNamespaces: capability.UserNamespaces,
			conformance.Privileged: capability.Privileged,
		} {
			want := capability.Yes
			if lacks[ability] != "" {
				want = capability.No
			}
			if got := all.Handlers[i].Capabilities.Of(name); got.Answer != want {
				return fmt.Errorf("%s is %+v, want %v", name, got, want)
			}
		}
		return nil
	})
}

// The groups whose results can differ under a second OCI runtime, a shim, or gVisor. The other
// groups check code of berth that is the same under every runtime.
var (
	ofRuntime = []string{"Runtime", "Namespaces", "UserNamespaces", "Container", "Exit", "Stop", "ExecSync", "Streaming", "Process", "Security", "Mounts", "Resources", "Stats"}
	ofShim    = []string{"Runtime", "Namespaces", "UserNamespaces", "Container", "Exit", "Stop", "Logs", "ExecSync", "Resources", "Stats", "Streaming", "Restart"}
	ofGVisor  = []string{"Runtime", "Namespaces", "UserNamespaces", "Network", "Container", "Exit", "Stop", "ExecSync", "Security", "Mounts", "Volumes", "Resources", "Stats", "Metrics", "Streaming", "Restart"}
)

// allGroups is whether every target runs all groups.
func allGroups() bool { return os.Getenv("BERTH_TEST_GROUPS") == "all" }

// groups returns the groups that a target runs: some of them, or nil for all.
func groups(some ...string) []string {
	if allGroups() {
		return nil
	}
	return some
}

// network returns a network, which supports host ports only if all targets run all groups.
func network(t *testing.T) *testbed.CNI {
	t.Helper()
	if allGroups() {
		return testbed.NewCNI(t)
	}
	return testbed.NewCNI(t, testbed.Plain)
}

// TestBerth runs the suite under every kind of runtime that berth supports. By default only crun,
// whose pods start fastest, runs all groups, and its checks of host ports run under handler ports.
func TestBerth(t *testing.T) {
	runc, crun, runsc := testbed.Part(t, testbed.Runc), testbed.Part(t, testbed.Crun), testbed.Part(t, testbed.Runsc)
	reg := testbed.NewRegistry(t, testbed.RegistryOptions{})
	withPorts := testbed.NewCNI(t)
	b := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": runc, "crun": crun},
		Config: fmt.Sprintf(`
[runtimes.ports]
runtime_path = %q
cni_conf_dir = %q
[runtimes.runsc]
runtime_path = %q
cni_conf_dir = %[2]q
[runtimes.shim]
runtime_path = %[4]q
[runtimes.shim.options]
BinaryName = %[5]q
`, crun, withPorts.ConfDir, runsc, testbed.Part(t, testbed.RuncShim), runc),
		DefaultRuntime: "runc",
		CNI:            network(t),
		Registries:     []*testbed.Registry{reg},
	})
	before := b.Snapshot(t)
	images := suiteImages(t, reg)
	root := func(handler string) string { return filepath.Join(b.State, "runtimes", handler) }
	var withoutPorts map[conformance.Ability]string
	if !allGroups() {
		withoutPorts = map[conformance.Ability]string{conformance.PortMapping: "its network does not support host ports; handler ports runs these checks"}
	}
	for _, target := range []struct {
		handler string
		ran     func(*testing.T, conformance.Running)
		lacks   map[conformance.Ability]string
		groups  []string
	}{
		{handler: "crun", ran: conformance.RanByOCIRuntime(crun, root("crun")), lacks: withoutPorts},
		{handler: "ports", ran: conformance.RanByOCIRuntime(crun, root("ports")), groups: []string{"Network"}},
		{handler: "runc", ran: conformance.RanByOCIRuntime(runc, root("runc")), groups: ofRuntime},
		{handler: "shim", ran: conformance.RanByShim("containerd-shim-runc-v2"), lacks: shimLacks, groups: ofShim},
		{handler: "runsc", ran: conformance.RanByGVisor(runsc, root("runsc")), lacks: lacksOfGVisor(t, runsc), groups: ofGVisor},
	} {
		t.Run(target.handler, func(t *testing.T) {
			saysSo(t, b, target.handler, target.lacks)
			conformance.Run(t, conformance.Target{
				Runtime: b.Client, Images: b.Client,
				Handler:      target.handler,
				Image:        images,
				Ran:          target.ran,
				Lacks:        target.lacks,
				Groups:       groups(target.groups...),
				Again:        target.handler != "crun" && !allGroups(),
				Berth:        true,
				CgroupParent: b.Client.CgroupParent,
				Restart: func(t *testing.T) {
					b.Kill9(t)
					b.Start(t)
				},
			})
		})
	}
	removeImages(t, b.Client)
	// An idle supervisor waits a minute for the next pod; a restart of berth stops it.
	b.Restart(t)
	b.NoLeaks(t, before)
	if left, err := withPorts.Left(); err != nil || len(left) > 0 {
		t.Errorf("the network with host ports left %q, %v", left, err)
	}
}

func removeImages(t *testing.T, client *testbed.Client) {
	t.Helper()
	list, err := client.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	testbed.Must(t, err)
	for _, image := range list.GetImages() {
		_, err := client.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image.GetId()}})
		testbed.Checkf(t, err, "remove image %s", image.GetId())
	}
}

// TestMain turns off the log of the Kubernetes client, which has each session that a check cuts.
func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{})
	os.Exit(testbed.RunBeside(m))
}
