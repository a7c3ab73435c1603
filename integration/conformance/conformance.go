// Package conformance proves that a CRI endpoint runs pods as the CRI demands.
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
// The checks use only gRPC calls and what they see inside the pod and on the host, and nothing of
// the daemon's code. So the same checks hold for every backend and for other daemons. Lacks lists
// what a target cannot do; the checks that need it are skipped with that reason. Checks of promises
// that only berth makes run if Berth is set.
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
	// Image has the references that the checks pull. Required.
	Image Images
	// Ran fails the test unless the container really runs under the runtime of Handler. Required:
	// otherwise the suite would not notice that another runtime runs the pods.
	Ran func(t *testing.T, c Running)
	// Lacks names what the runtime cannot do, with the reason.
	Lacks map[Ability]string
	// Differs names checks, as Group/name, that the target is known to fail,
	// with the reason. They are not run.
	Differs map[string]string
	// Groups are the groups of checks to run; empty means all.
	Groups []string
	// Again is set if another handler of the same daemon was checked too: checks that are marked
	// daemon are not repeated.
	Again bool
	// Berth adds the checks of what berth promises beyond the CRI.
	Berth bool
	// Restart kills the daemon with SIGKILL, starts it again and returns when it answers. The
	// clients must keep working. If nil, the checks do not restart the daemon.
	Restart func(t *testing.T)
	// CgroupParent is the cgroup that has the pods' cgroups; "" leaves the choice to the daemon.
	CgroupParent string
	// Wait is how long checks wait for an effect to appear; zero is a minute, because a busy
	// machine is slow.
	Wait time.Duration
}

// Images are references at a registry that the endpoint can reach. Unless stated otherwise, an
// image contains a busybox with /bin/sh, /etc/passwd and /etc/group.
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
	// Volume has no programs, and at least two layers. The lower layer has the files base, gone,
	// dir/sub/deep, and owned, which belongs to 1000:1001; the upper layer has dir/upper and
	// removes gone. A file contains its base name. absolute, climbing and dangling are links to
	// /usr, to ../../../usr and to nothing; usr only has a directory in-the-image; within is a
	// directory.
	Volume string
	// Defined has VOLUMEs: /data, which has files, links and owners in the image, and /fresh/place,
	// which the image does not have.
	Defined string
	// DefinedOdd has VOLUMEs with unusual paths, with links in their paths, and in file systems of
	// the kernel.
	DefinedOdd string
	// DefinedRoot, DefinedRootLink, DefinedFile and DefinedMany have VOLUMEs that must be refused.
	DefinedRoot, DefinedRootLink, DefinedFile, DefinedMany string
	// Artifact is not a container image: its blobs are README.md, which contains "read me", and
	// weights/model.bin. Empty if the endpoint cannot mount artifacts.
	Artifact string
	// Absent is a reference that the registry answers 404 to.
	Absent string
}

// Running is a running container, for Target.Ran.
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
	// daemon marks what does not depend on the pod's runtime.
	daemon bool
	// alone is set if the check and others would disturb each other: it restarts the daemon,
	// removes images that others use, counts everything on the node, needs most of the machine, or
	// fails on a busy machine, as statistics do: gVisor starts a process for them.
	alone bool
	run   func(t *testing.T, n *node)
}

// Run checks the target, one subtest for each behaviour, in groups. The checks that need the target
// to themselves come first. The others then run in parallel, because most of them wait: as many at
// once as -parallel allows.
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
			t.Errorf("the target differs in %q, which is not a check", name)
		}
	}
	for _, name := range n.Groups {
		if !slices.ContainsFunc(groups(), func(g group) bool { return g.name == name }) {
			t.Errorf("the target has a group %q, which does not exist", name)
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
			t.Parallel() // waits until all groups are at this point
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

// Names returns the names of all checks, as Group/name.
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

// allAlone marks all checks of a group as alone.
func allAlone(checks []check) []check {
	all := slices.Clone(checks)
	for i := range all {
		all[i].alone = true
	}
	return all
}

// ofDaemon marks all checks of a group as daemon.
func ofDaemon(checks []check) []check {
	all := slices.Clone(checks)
	for i := range all {
		all[i].daemon = true
	}
	return all
}

// runCheck runs a check, unless the target lacks something that it needs.
func (n *node) runCheck(t *testing.T, group string, c check) {
	if why, differs := n.Differs[group+"/"+c.name]; differs {
		t.Skip("the target differs: " + why)
	}
	if c.berth && !n.Berth {
		t.Skip("not a promise of the CRI: only berth must keep it")
	}
	for _, a := range c.needs {
		if why, lacks := n.Lacks[a]; lacks {
			t.Skipf("the target lacks %s: %s", a, why)
		}
	}
	c.run(t, n)
}
