package conformance_test

import (
	"testing"

	"github.com/berth-cri/berth/integration/conformance"
	"github.com/berth-cri/berth/integration/testbed"
)

// containerdLacks is what containerd cannot do.
var containerdLacks = map[conformance.Ability]string{
	conformance.MountOptions: "its CRI is older than mount_options",
	conformance.Labels:       "the testbed's is told to do without AppArmor, and SELinux is off by default",
}

// containerdDiffers is what it is known not to do as the CRI says.
var containerdDiffers = map[string]string{
	"Sandbox/verbose status has info":                              "a status that is not verbose has an info of empty fields",
	"Container/status is whole in every state":                     "image_ref is an id in lists and a digest in status",
	"Exit/exit codes and reasons":                                  "a program that ends at once is finished before it was started",
	"Logs/a log that cannot be written does not stop the program":  "a full file system of logs stops the programs that write to it",
	"Security/AppArmor profiles":                                   "told to do without AppArmor, it refuses its own default profile too",
	"Streaming/stdin_once ends stdin with the first session":       "a session over WebSocket without stdin ends it too",
	"Streaming/exec waits for a slow client":                       "it hangs up first, and what its client sends then costs it what it has not read",
	"Streaming/port-forward to loopback over IPv6":                 "the host's own names decide whether localhost is ::1 too",
	"Streaming/attach ends with the container and loses nothing":   "a busy one ends the session before it has sent all",
	"Stats/of one container":                                       "the writable layer is measured every ten seconds, and until then is empty",
	"UserNamespaces/the sandbox's files belong to root of the pod": "/dev/shm belongs to nobody",
	"ImageVolumes/a symbolic link in a sub path stays inside":      "an absolute link is refused as an escape",
	"PodStats/the default interface is none of the others":         "it is listed among the others too",
	"StreamLists/images by name":                                   "the filter of images is not looked at",
}

// TestContainerd holds the suite itself to the truth: what a CRI daemon that
// thousands of nodes run does not pass is no rule of the CRI. What containerd is
// known not to do is listed above with its reason.
func TestContainerd(t *testing.T) {
	testbed.Part(t, testbed.Containerd)
	runc := testbed.Part(t, testbed.Runc)
	reg := testbed.NewRegistry(t, testbed.RegistryOptions{})
	d := startContainerd(t, runc, testbed.NewCNI(t, testbed.Local), reg)
	conformance.Run(t, conformance.Target{
		Runtime: d.Client, Images: d.Client,
		Handler:      "runc",
		Image:        suiteImages(t, reg),
		CgroupParent: d.Client.CgroupParent,
		Ran:          conformance.RanByOCIRuntime(runc, d.ContainerdRuntimeRoot("runc")),
		Lacks:        containerdLacks,
		Differs:      containerdDiffers,
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
		// A shell reaps the orphans of a shared pid namespace, as a pause does.
		Pause: []string{"/bin/sh", "-c", "while :; do sleep 86400 & wait $!; done"},
	})
}
