package conformance_test

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

// passedOn are the groups that check code of berth in front of another daemon: calls that berth
// does not only pass on, and answers that it merges. All other groups only check what the other
// daemon does with a pod.
var passedOn = []string{
	"Runtime", "Sandbox", "Container", "ContainerInput", "StreamLists", "Events", "Images", "Identity",
	"Stats", "PodStats", "Metrics", "Restart",
}

// sessionsStay is what differs if the daemon in front is restarted, but not the daemon that has
// the sessions.
var sessionsStay = map[string]string{
	"Streaming/sessions with old containers after a kill -9 of the daemon": "the other daemon has the sessions; it is not restarted, so they go on",
}

// TestRemote runs the suite on pods that another CRI daemon runs: another berth, a berth behind
// that one, and a containerd. The checks of restarts kill other daemons under each of the three.
func TestRemote(t *testing.T) {
	runc := testbed.Part(t, testbed.Runc)
	testbed.Part(t, testbed.Containerd)
	reg := testbed.NewRegistry(t, testbed.RegistryOptions{})
	cni := network(t)
	inner := testbed.StartBerth(t, testbed.Options{
		Runtimes: map[string]string{"runc": runc}, DefaultRuntime: "runc", CNI: cni, Registries: []*testbed.Registry{reg},
	})
	containerd := startContainerd(t, runc, cni, reg)
	front := func(name, socket, theirs string) *testbed.Berth {
		return testbed.StartBerth(t, testbed.Options{
			Config:         fmt.Sprintf("[runtimes.%s]\nendpoint = %q\nremote_handler = %q\n", name, "unix://"+socket, theirs),
			DefaultRuntime: name, CNI: cni, Registries: []*testbed.Registry{reg},
		})
	}
	berth := front("remote-berth", inner.Socket, "runc")
	chain := front("remote-chain", berth.Socket, "remote-berth")
	other := front("remote-containerd", containerd.Socket, "runc")
	images := suiteImages(t, reg)
	ran := conformance.RanByOCIRuntime(runc, filepath.Join(inner.State, "runtimes", "runc"))
	for _, target := range []struct {
		handler string
		front   *testbed.Berth
		ran     func(*testing.T, conformance.Running)
		// killed are the daemons that Restart kills, in this order; it starts them in reverse order.
		killed  []*testbed.Daemon
		lacks   map[conformance.Ability]string
		differs map[string]string
		berth   bool
		groups  []string
	}{
		{
			handler: "remote-berth", front: berth, ran: ran, berth: true,
			killed: []*testbed.Daemon{berth.Daemon}, differs: sessionsStay,
			groups: slices.Concat(passedOn, []string{"SandboxInput", "ExecSync", "Parallel"}),
		},
		{
			handler: "remote-chain", front: chain, ran: ran, berth: true,
			killed: []*testbed.Daemon{chain.Daemon, berth.Daemon, inner.Daemon},
			groups: []string{"Runtime", "Sandbox", "Container", "Streaming", "Restart"},
		},
		{
			handler: "remote-containerd", front: other,
			ran:    conformance.RanByOCIRuntime(runc, containerd.ContainerdRuntimeRoot("runc")),
			killed: []*testbed.Daemon{containerd}, lacks: containerdLacks, differs: mended(containerdDiffers, "StreamLists/images by name"), groups: passedOn,
		},
	} {
		t.Run(target.handler, func(t *testing.T) {
			conformance.Run(t, conformance.Target{
				Runtime: target.front.Client, Images: target.front.Client,
				Handler:      target.handler,
				Image:        images,
				Ran:          target.ran,
				Lacks:        target.lacks,
				Differs:      target.differs,
				Groups:       groups(target.groups...),
				Berth:        target.berth,
				CgroupParent: target.front.Client.CgroupParent,
				Restart: func(t *testing.T) {
					for _, d := range target.killed {
						d.Kill9(t)
					}
					for i := len(target.killed) - 1; i >= 0; i-- {
						target.killed[i].Start(t)
					}
					reached(t, target.front.Client, target.handler)
				},
			})
		})
	}
}

// mended returns the differences without one, which berth compensates.
func mended(differs map[string]string, name string) map[string]string {
	rest := maps.Clone(differs)
	delete(rest, name)
	return rest
}

// reached waits until berth can call the daemon of a handler.
func reached(t *testing.T, client *testbed.Client, handler string) {
	t.Helper()
	testbed.Eventually(t, time.Minute, func() error {
		_, err := client.ImageStatus(t.Context(), &runtimeapi.ImageStatusRequest{
			Image: &runtimeapi.ImageSpec{Image: "none", RuntimeHandler: handler},
		})
		return err
	})
}

// containerdLacks is what containerd cannot do.
var containerdLacks = map[conformance.Ability]string{
	conformance.MountOptions: "its CRI is older than mount_options",
	conformance.Labels:       "the testbed disables AppArmor in containerd, and SELinux is off by default",
}

// containerdDiffers are checks that containerd is known to fail, with the reason.
var containerdDiffers = map[string]string{
	"Sandbox/verbose status has info":                              "a status that is not verbose has info with empty fields",
	"Container/status is whole in every state":                     "image_ref is an id in lists and a digest in status",
	"Exit/exit codes and reasons":                                  "a program that exits at once has a finish time before its start time",
	"Stop/status is final when stop returns":                       "on a busy machine the container is reported as running for a moment",
	"Logs/a log that cannot be written does not stop the program":  "if the file system of the logs is full, programs that write to them stop",
	"Security/AppArmor profiles":                                   "with AppArmor disabled, it refuses its own default profile too",
	"Streaming/stdin_once ends stdin with the first session":       "a session over WebSocket without stdin ends stdin too",
	"Streaming/exec waits for a slow client":                       "it closes the connection first; a client that still sends loses unread output",
	"Streaming/port-forward to loopback over IPv6":                 "the host's own names decide whether localhost is ::1 too",
	"Streaming/attach ends with the container and loses nothing":   "a busy containerd ends the session before it has sent all output",
	"Stats/of one container":                                       "the writable layer is measured every ten seconds, and is empty before",
	"UserNamespaces/the sandbox's files belong to root of the pod": "/dev/shm belongs to nobody",
	"ImageVolumes/a symbolic link in a sub path stays inside":      "an absolute link is refused as an escape",
	"PodStats/the default interface is none of the others":         "the default interface is also listed among the others",
	"StreamLists/images by name":                                   "the filter of images is ignored",
}

// TestContainerd runs the suite under containerd to check the suite itself: a check that such a
// widely used daemon fails is hardly a rule of the CRI. Known failures are in containerdDiffers,
// with their reasons. CI runs only the groups that take little time.
func TestContainerd(t *testing.T) {
	testbed.Part(t, testbed.Containerd)
	runc := testbed.Part(t, testbed.Runc)
	reg := testbed.NewRegistry(t, testbed.RegistryOptions{})
	d := startContainerd(t, runc, network(t), reg)
	conformance.Run(t, conformance.Target{
		Runtime: d.Client, Images: d.Client,
		Handler:      "runc",
		Image:        suiteImages(t, reg),
		CgroupParent: d.Client.CgroupParent,
		Ran:          conformance.RanByOCIRuntime(runc, d.ContainerdRuntimeRoot("runc")),
		Lacks:        containerdLacks,
		Differs:      containerdDiffers,
		Groups:       groups("Runtime", "Sandbox", "SandboxInput", "ContainerInput", "Images", "Identity", "StreamLists", "Exit", "Stop", "Logs"),
		Restart: func(t *testing.T) {
			d.Kill9(t)
			d.Start(t)
		},
	})
}

func startContainerd(t *testing.T, runc string, cni *testbed.CNI, reg *testbed.Registry) *testbed.Daemon {
	t.Helper()
	return testbed.StartContainerd(t, testbed.ContainerdOptions{
		Runtimes: map[string]string{"runc": runc}, DefaultRuntime: "runc", CNI: cni, Registry: reg,
		// The shell reaps orphans in a shared PID namespace, as a pause container does.
		Pause: []string{"/bin/sh", "-c", "while :; do sleep 86400 & wait $!; done"},
	})
}
