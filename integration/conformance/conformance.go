// Package conformance proves that a CRI endpoint runs pods as the CRI says.
//
// A backend's test fills in a Target and calls Run:
//
//	conformance.Run(t, conformance.Target{
//		Runtime: runtimeapi.NewRuntimeServiceClient(conn),
//		Images:  runtimeapi.NewImageServiceClient(conn),
//		Handler: "runc",
//		Image:   images,
//		Ran:     conformance.RanByOCIRuntime("/usr/sbin/runc", "/run/x/runc"),
//	})
//
// Everything is asked over gRPC and looked at from inside the pod or from the
// host; nothing is known about the daemon's code. The same checks therefore hold
// for every backend and for the daemons of others. Where a target cannot do
// something its Lacks set says so, and the skip names it. Checks of promises
// that only berth makes are run when Berth is set.
package conformance

import (
	"slices"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Target is one runtime handler of one CRI endpoint.
type Target struct {
	// Runtime and Images are raw clients of the endpoint. Required.
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
	// Handler is sent as runtime_handler with every sandbox; "" is the
	// endpoint's default.
	Handler string
	// Image holds the references the checks pull. Required.
	Image Images
	// Ran fails the test unless the container really runs under the runtime
	// of Handler. Required: a suite that cannot tell the runtimes apart proves
	// nothing about routing.
	Ran func(t *testing.T, c Running)
	// Lacks names what the runtime cannot do, with the reason.
	Lacks map[Ability]string
	// Differs names checks, as Group/name, that the target is known to fail,
	// with the reason. They are not run.
	Differs map[string]string
	// Groups are the only ones that are run; none is all.
	Groups []string
	// Again says that another handler of the same daemon is a target too: what the
	// daemon does by itself is not checked again.
	Again bool
	// Berth also runs the checks of what berth promises beyond the CRI.
	Berth bool
	// Restart kills the daemon with SIGKILL, starts it again and returns when
	// it answers. The clients must keep working. nil leaves the restart out.
	Restart func(t *testing.T)
	// CgroupParent is what the pods' cgroups are made below; "" leaves it to the
	// runtime.
	CgroupParent string
	// Wait is how long to wait for something that happens by itself; zero is a
	// minute: a machine that is busy may be late.
	Wait time.Duration
}

// Images are references at a registry that the endpoint can reach. All of them
// contain a busybox with /bin/sh, /etc/passwd and /etc/group.
type Images struct {
	// Busybox has no USER, and at least one alias: another tag of the same image.
	Busybox, BusyboxAlias string
	// Digest is Busybox's manifest digest, sha256:....
	Digest string
	// Other is a different image in another repository, with neither an entry
	// point nor a command.
	Other string
	// User has a USER by name ("app", uid 1000, gid 1000 in /etc/passwd, and a
	// member of group 2000 in /etc/group).
	User string
	// Process has ENTRYPOINT ["/bin/echo","entry"], CMD ["cmd"], WORKDIR
	// /work, ENV FROM_IMAGE=yes and STOPSIGNAL SIGUSR1.
	Process string
	// Volume has no programs, and at least two layers: base and gone hold their
	// names, owned is 1000:1001's, dir/sub/deep, and in the upper layer dir/upper;
	// gone is removed there. absolute, climbing and dangling are links to /usr, to
	// ../../../usr and to nowhere; usr has a directory in-the-image and nothing
	// else; within is a directory.
	Volume string
	// Defined has VOLUMEs: /data, which has files, links and owners in the image, and
	// /fresh/place, which is not there.
	Defined string
	// DefinedOdd has VOLUMEs that are written in odd ways, lead over links, or are in
	// file systems of the kernel.
	DefinedOdd string
	// DefinedRoot, DefinedRootLink, DefinedFile and DefinedMany have VOLUMEs that
	// cannot be.
	DefinedRoot, DefinedRootLink, DefinedFile, DefinedMany string
	// Artifact is no container image: its blobs are called README.md, which says "read
	// me", and weights/model.bin. Empty for an endpoint that mounts none.
	Artifact string
	// Absent is a reference that the registry answers 404 to.
	Absent string
}

// Running is a container that runs, for Target.Ran to look at.
type Running struct {
	SandboxID, ContainerID string
	// Exec runs a command in the container and returns its standard output.
	Exec func(t *testing.T, cmd ...string) string
}

// Ability is something that not every runtime can do.
type Ability string

// The abilities that a Target may lack.
const (
	HostNetwork     Ability = "pods in the host's network namespace"
	HostIPC         Ability = "pods in the host's ipc namespace"
	HostPID         Ability = "pods in the host's pid namespace"
	HostProcesses   Ability = "container processes that the host can see in /proc"
	SeparatePID     Ability = "containers of one pod in pid namespaces of their own"
	TargetPID       Ability = "a container in the pid namespace of another"
	ExecDescendants Ability = "ending what the command of an exec has started"
	OOMReport       Ability = "reporting an OOM kill as OOMKilled"
	CgroupPerCtr    Ability = "a cgroup of its own for each container"
	Propagation     Ability = "mounts that propagate from a container to the host"
	SeccompReport   Ability = "the Seccomp field of /proc/self/status"
	SeccompExec     Ability = "seccomp filters for what is exec'd"
	NoNewPrivReport Ability = "the NoNewPrivs field of /proc/self/status"
	MaskedPaths     Ability = "masked and read-only paths"
	PortMapping     Ability = "host ports"
	StartErrors     Ability = "an error from StartContainer when the program is missing"
	LiveUpdate      Ability = "new limits for a running container"
	Privileged      Ability = "privileged containers that see the host's devices"
	Events          Ability = "GetContainerEvents"
	Stats           Ability = "container statistics"
	MessageQueues   Ability = "POSIX message queues (/dev/mqueue)"
	Sysctls         Ability = "sysctls of a pod"
	MountOptions    Ability = "options of mounts (noexec, nodev, nosuid)"
	Labels          Ability = "AppArmor profiles and SELinux labels of processes"
	UserNamespaces  Ability = "pods with a user namespace of their own"
)

// check is one behaviour of the contract.
type check struct {
	name  string
	needs []Ability
	// berth marks a promise that only berth makes.
	berth bool
	// daemon marks what the daemon does by itself, whichever runtime the pod has.
	daemon bool
	// alone is for what others would feel or disturb: it restarts the daemon,
	// removes images that others use, counts all that there is, asks for more than
	// the machine has, or has its answer only while it is not too busy, as statistics
	// have: gVisor starts a process for them.
	alone bool
	run   func(t *testing.T, n *node)
}

// Run checks the target, one sub-test for each behaviour, grouped by noun. The
// checks that need the target to themselves come first, and then all others beside
// each other, as many at once as the test's -parallel says: most of them wait.
func Run(t *testing.T, target Target) {
	n := newNode(t, target)
	n.checks = map[string]check{}
	for _, g := range groups() {
		for _, c := range g.checks {
			n.checks[g.name+"/"+c.name] = c
		}
	}
	for name := range n.Differs {
		if _, known := n.checks[name]; !known {
			t.Errorf("the target differs in %q, which is no check", name)
		}
	}
	for _, name := range n.Groups {
		if !slices.ContainsFunc(groups(), func(g group) bool { return g.name == name }) {
			t.Errorf("the target has a group %q, which there is not", name)
		}
	}
	for _, g := range groups() {
		if len(n.Groups) > 0 && !slices.Contains(n.Groups, g.name) {
			continue
		}
		if n.Again {
			g.checks = slices.DeleteFunc(slices.Clone(g.checks), func(c check) bool { return c.daemon })
		}
		if len(g.checks) == 0 {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.checks {
				if c.alone {
					t.Run(c.name, func(t *testing.T) { n.runCheck(t, g.name, c) })
				}
			}
			t.Parallel() // goes on when all groups have come here
			for _, c := range g.checks {
				if !c.alone {
					t.Run(c.name, func(t *testing.T) {
						t.Parallel()
						n.runCheck(t, g.name, c)
					})
				}
			}
		})
	}
}

// Names are those of all checks, as Group/name.
func Names() []string {
	var names []string
	for _, g := range groups() {
		for _, c := range g.checks {
			names = append(names, g.name+"/"+c.name)
		}
	}
	return names
}

type group struct {
	name   string
	checks []check
}

func groups() []group {
	return []group{
		{"Runtime", runtimeChecks},
		{"Sandbox", sandboxChecks},
		{"SandboxInput", ofDaemon(sandboxInputChecks)},
		{"Network", networkChecks},
		{"Namespaces", namespaceChecks},
		{"UserNamespaces", usernsChecks},
		{"Container", containerChecks},
		{"ContainerInput", ofDaemon(containerInputChecks)},
		{"Exit", exitChecks},
		{"Stop", stopChecks},
		{"Logs", logChecks},
		{"ExecSync", execChecks},
		{"Process", processChecks},
		{"Security", securityChecks},
		{"Mounts", mountChecks},
		{"Volumes", volumeChecks},
		{"ImageVolumes", imageVolumeChecks},
		{"DefinedVolumes", definedVolumeChecks},
		{"Resources", resourceChecks},
		{"Stats", allAlone(statsChecks)},
		{"PodStats", allAlone(podStatsChecks)},
		{"Metrics", allAlone(metricChecks)},
		{"StreamLists", ofDaemon(streamListChecks)},
		{"Events", eventChecks},
		{"Streaming", streamingChecks},
		{"Images", ofDaemon(allAlone(imageChecks))},
		{"Identity", ofDaemon(identityChecks)},
		{"Parallel", allAlone(parallelChecks)},
		{"Restart", allAlone(restartChecks)},
	}
}

// allAlone marks the checks of a whole group.
func allAlone(checks []check) []check {
	all := slices.Clone(checks)
	for i := range all {
		all[i].alone = true
	}
	return all
}

// ofDaemon marks the checks of a whole group.
func ofDaemon(checks []check) []check {
	all := slices.Clone(checks)
	for i := range all {
		all[i].daemon = true
	}
	return all
}

// runCheck skips what the target says it cannot do, and runs the rest.
func (n *node) runCheck(t *testing.T, group string, c check) {
	if why, differs := n.Differs[group+"/"+c.name]; differs {
		t.Skip("the target differs: " + why)
	}
	if c.berth && !n.Berth {
		t.Skip("not a promise of the CRI: only berth is held to it")
	}
	for _, a := range c.needs {
		if why, lacks := n.Lacks[a]; lacks {
			t.Skipf("the target lacks %s: %s", a, why)
		}
	}
	c.run(t, n)
}
