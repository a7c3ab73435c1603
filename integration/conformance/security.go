package conformance

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var securityChecks = []check{
	{name: "default capabilities", run: defaultCapabilities},
	{name: "capabilities are added", run: addCapabilities},
	{name: "capabilities are dropped", run: dropCapabilities},
	{name: "all capabilities", run: allCapabilities},
	{name: "a user besides root has no effective capability", run: noRootCapabilities},
	{name: "seccomp: none is unconfined", needs: []Ability{SeccompReport}, run: seccompNone},
	{name: "seccomp: an empty profile is the runtime's default", needs: []Ability{SeccompReport}, run: seccompDefault},
	{name: "seccomp: a profile of the host", run: seccompLocalhost},
	{name: "seccomp: a profile of the host in Docker's form", berth: true, run: seccompDockerForm},
	{name: "seccomp: a profile of the host holds for execs", needs: []Ability{SeccompExec}, run: seccompLocalhostExec},
	{name: "seccomp: unconfined", needs: []Ability{SeccompReport}, run: seccompUnconfined},
	{name: "AppArmor profiles", run: apparmorProfiles},
	{name: "SELinux labels", run: selinuxLabels},
	{name: "no_new_privs", needs: []Ability{NoNewPrivReport}, run: noNewPrivs},
	{name: "read-only root", run: readonlyRootfs},
	{name: "masked paths", needs: []Ability{MaskedPaths}, run: maskedPaths},
	{name: "read-only paths", needs: []Ability{MaskedPaths}, run: readonlyPaths},
	{name: "no masked path at all", needs: []Ability{MaskedPaths}, run: unmasked},
	{name: "privileged", needs: []Ability{Privileged}, run: privileged},
	{name: "a plain container cannot mount", run: cannotMount},
}

// capability is a bit of CapEff, by its number in capability.h.
type capability uint

const (
	capChown    capability = 0
	capKill     capability = 5
	capNetAdmin capability = 12
	capSysAdmin capability = 21
	capSysTime  capability = 25
)

// effective returns the effective capabilities of the container's program.
func effective(t *testing.T, c *container) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(procStatus(t, c, "1", "CapEff"), 16, 64)
	must(t, err, "CapEff")
	return v
}

func has(set uint64, c capability) bool { return set&(1<<c) != 0 }

func capabilities(add, drop []string) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: add, DropCapabilities: drop}
	})
}

func defaultCapabilities(t *testing.T, n *node) {
	set := effective(t, n.pod(t).start(t, forever()))
	for _, c := range []capability{capChown, capKill} {
		if !has(set, c) {
			t.Errorf("capability %d is missing from the default set %x", c, set)
		}
	}
	for _, c := range []capability{capSysAdmin, capNetAdmin, capSysTime} {
		if has(set, c) {
			t.Errorf("capability %d is in the default set %x", c, set)
		}
	}
}

func addCapabilities(t *testing.T, n *node) {
	// Names have no CAP_ prefix, and may be in lower case.
	set := effective(t, n.pod(t).start(t, forever(), capabilities([]string{"NET_ADMIN", "sys_time"}, nil)))
	if !has(set, capNetAdmin) || !has(set, capSysTime) || !has(set, capChown) {
		t.Errorf("the set is %x, want the default with NET_ADMIN and SYS_TIME", set)
	}
}

func dropCapabilities(t *testing.T, n *node) {
	p := n.pod(t)
	if set := effective(t, p.start(t, forever(), capabilities(nil, []string{"CHOWN"}))); has(set, capChown) || !has(set, capKill) {
		t.Errorf("CHOWN dropped: %x", set)
	}
	testbed.Same(t, effective(t, p.start(t, forever(), capabilities(nil, []string{"ALL"}))), 0, "ALL dropped")
	testbed.Same(t, effective(t, p.start(t, forever(), capabilities([]string{"NET_ADMIN"}, []string{"ALL"}))), 1<<capNetAdmin, "ALL dropped, NET_ADMIN added")
}

func allCapabilities(t *testing.T, n *node) {
	set := effective(t, n.pod(t).start(t, forever(), capabilities([]string{"ALL"}, []string{"SYS_TIME"})))
	if !has(set, capSysAdmin) || has(set, capSysTime) {
		t.Errorf("ALL added, SYS_TIME dropped: %x", set)
	}
}

func noRootCapabilities(t *testing.T, n *node) {
	testbed.Same(t, effective(t, n.pod(t).start(t, forever(), asUser(1000, 1000))), 0, "effective set of uid 1000 is")
}

func seccomp(p *runtimeapi.SecurityProfile) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Seccomp = p })
}

func wantSeccomp(t *testing.T, n *node, p *runtimeapi.SecurityProfile, want string) {
	t.Helper()
	testbed.Same(t, procStatus(t, n.pod(t).start(t, forever(), seccomp(p)), "1", "Seccomp"), want, "Seccomp mode is")
}

func seccompNone(t *testing.T, n *node) { wantSeccomp(t, n, nil, "0") }

func seccompDefault(t *testing.T, n *node) {
	wantSeccomp(t, n, &runtimeapi.SecurityProfile{}, "2")
	wantSeccomp(t, n, &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, "2")
}

// noMkdir sets a profile that forbids mkdir, from a file of the host.
func noMkdir(t *testing.T) containerOption {
	t.Helper()
	file := filepath.Join(t.TempDir(), "profile.json")
	must(t, os.WriteFile(file, []byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}`), 0o600), "profile")
	return seccomp(&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: file})
}

// seccompLocalhost runs mkdir in containers without and with a profile.
func seccompLocalhost(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, sh("mkdir /tmp/own; echo $?; exec sleep 3600")).waitLog(t, "0\n")
	p.start(t, sh("mkdir /tmp/own; echo $?; exec sleep 3600"), noMkdir(t)).waitLog(t, "1\n")
	// The profile does not affect other containers of the pod.
	p.start(t, sh("mkdir /tmp/own; echo $?; exec sleep 3600")).waitLog(t, "0\n")
}

// seccompDockerForm has a rule that is only for containers without SYS_ADMIN.
func seccompDockerForm(t *testing.T, n *node) {
	file := filepath.Join(t.TempDir(), "docker.json")
	must(t, os.WriteFile(file, []byte(`{"defaultAction": "SCMP_ACT_ALLOW",
		"archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}, {"architecture": "SCMP_ARCH_AARCH64"}],
		"syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "args": [], "comment": "", "includes": {}, "excludes": {"caps": ["CAP_SYS_ADMIN"]}}]}`), 0o600), "profile")
	profile := seccomp(&runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: file})
	admin := security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
	})
	p := n.pod(t)
	p.start(t, sh("mkdir /tmp/own; echo $?; exec sleep 3600"), profile).waitLog(t, "1\n")
	p.start(t, sh("mkdir /tmp/own; echo $?; exec sleep 3600"), profile, admin).waitLog(t, "0\n")
}

func seccompLocalhostExec(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, forever()).exec(t, "mkdir", "/tmp/new")
	c := p.start(t, forever(), noMkdir(t))
	if r, err := c.execSync(t, execBound, "mkdir", "/tmp/new"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("an exec does what the profile forbids: %v, %v", r, err)
	}
	c.exec(t, "touch", "/tmp/file")
	testbed.Same(t, procStatus(t, c, "1", "Seccomp"), "2", "Seccomp mode is")
}

func seccompUnconfined(t *testing.T, n *node) {
	wantSeccomp(t, n, &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, "0")
}

func noNewPrivs(t *testing.T, n *node) {
	p := n.pod(t)
	for _, on := range []bool{false, true} {
		c := p.start(t, forever(), asUser(1000, 1000), security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.NoNewPrivs = on }))
		want := map[bool]string{false: "0", true: "1"}[on]
		testbed.Same(t, procStatus(t, c, "1", "NoNewPrivs"), want, "no_new_privs %v: NoNewPrivs is", on)
	}
}

func readonlyRootfs(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.ReadonlyRootfs = true }))
	if r, err := c.execSync(t, execBound, "touch", "/etc/new"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("the root is writable: %v, %v", r, err)
	}
	c.exec(t, "sh", "-c", "echo x > /dev/null && echo y > /dev/shm/y")
	if r, err := p.start(t, forever()).execSync(t, execBound, "touch", "/etc/new"); err != nil || r.GetExitCode() != 0 {
		t.Errorf("a plain root is not writable: %v, %v", r, err)
	}
}

func maskedPaths(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.MaskedPaths = []string{"/proc/keys", "/proc/acpi", "/etc/passwd", "/no/such/path"}
	}))
	testbed.Same(t, c.exec(t, "cat", "/etc/passwd"), "", "a masked file has content")
	testbed.Same(t, c.exec(t, "ls", "/proc/acpi"), "", "a masked directory has entries")
}

func readonlyPaths(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.ReadonlyPaths = []string{"/tmp", "/proc/sys", "/no/such/path"}
	}))
	if r, err := c.execSync(t, execBound, "touch", "/tmp/x"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a read-only path is writable: %v, %v", r, err)
	}
}

// unmasked is a pod's procMount: Unmasked. With empty lists nothing may be masked, not even the
// runtime's default paths.
func unmasked(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	testbed.Same(t, c.exec(t, "sh", "-c", "grep -E ' /proc/[^ ]+ ' /proc/self/mounts || true"), "", "mounts below /proc though nothing was to be masked")
}

func privileged(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Linux.SecurityContext.Privileged = true })
	c := p.start(t, forever(), security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Privileged = true }))
	if set := effective(t, c); !has(set, capSysAdmin) || !has(set, capNetAdmin) {
		t.Errorf("capabilities are %x", set)
	}
	testbed.Same(t, procStatus(t, c, "1", "Seccomp"), "0", "Seccomp mode is")
	c.exec(t, "sh", "-c", "mkdir -p /mnt && mount -t tmpfs none /mnt && echo x > /mnt/x")
	if got := c.exec(t, "cat", "/proc/self/mounts"); !strings.Contains(sysMount(got), "rw") {
		t.Errorf("/sys is not writable: %s", sysMount(got))
	}
	c.exec(t, "test", "-c", "/dev/kmsg")
}

func sysMount(mounts string) string {
	for _, l := range strings.Split(mounts, "\n") {
		if f := strings.Fields(l); len(f) > 3 && f[1] == "/sys" {
			return f[3]
		}
	}
	return ""
}

func cannotMount(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	if r, err := c.execSync(t, execBound, "mount", "-t", "tmpfs", "none", "/tmp"); err != nil || r.GetExitCode() == 0 {
		t.Errorf("a plain container can mount: %v, %v", r, err)
	}
}

// hostAppArmor and hostSELinux report which of them this host's kernel has.
func hostAppArmor() bool {
	return strings.HasPrefix(readFile("/sys/module/apparmor/parameters/enabled"), "Y")
}

func hostSELinux() bool { return readFile("/sys/fs/selinux/enforce") != "" }

func apparmor(p *runtimeapi.SecurityProfile) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Apparmor = p })
}

// apparmorProfiles checks that a container with a profile that is not loaded is refused. Other
// containers must also run on a node without AppArmor.
func apparmorProfiles(t *testing.T, n *node) {
	p := n.pod(t)
	standard := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	none := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	_, err := p.tryCreate(t, p.containerConfig(forever(), apparmor(&runtimeapi.SecurityProfile{
		ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "conformance-never-loaded",
	})))
	n.rejects(t, err, "a profile that is not loaded", codes.FailedPrecondition)
	for want, profile := range map[string]*runtimeapi.SecurityProfile{"(enforce)": standard, "unconfined": none} {
		c := p.start(t, forever(), apparmor(profile))
		if _, lacks := n.Lacks[Labels]; lacks || !hostAppArmor() {
			continue
		}
		for _, process := range []string{"1", "self"} {
			testbed.Contains(t, c.line(t, "cat", "/proc/"+process+"/attr/current"), want, "process %s is under", process)
		}
	}
	if _, lacks := n.Lacks[Labels]; lacks || !hostAppArmor() {
		return
	}
	// Only the profile confines this container: it has all capabilities and no masked paths.
	c := p.start(t, forever(), apparmor(standard), security(func(s *runtimeapi.LinuxContainerSecurityContext) {
		s.Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		s.MaskedPaths, s.ReadonlyPaths = nil, nil
	}))
	for command, allowed := range map[string]bool{
		"echo renamed > /proc/self/comm":                                            true,
		"sleep 60 & kill $!":                                                        true,
		"cat /proc/1/environ":                                                       true,
		"echo 1 > /proc/sys/kernel/shm_rmid_forced":                                 true,
		"echo confined > /proc/sys/kernel/domainname":                               false,
		"cat /proc/sys/vm/swappiness > /proc/sys/vm/swappiness":                     false,
		"cat /proc/sys/net/ipv4/ip_default_ttl > /proc/sys/net/ipv4/ip_default_ttl": false,
		"echo 2 > /proc/irq/default_smp_affinity":                                   false,
		": > /proc/sysrq-trigger":                                                   false,
		"head -c 1 /proc/kcore":                                                     false,
		": > /sys/power/state":                                                      false,
		"mkdir /tmp/m && mount -t tmpfs none /tmp/m":                                false,
	} {
		if r, err := c.execSync(t, execBound, "sh", "-c", command); err != nil || (r.GetExitCode() == 0) != allowed {
			t.Errorf("under the default profile, %q: %v, %v; allowed is %v", command, r, err, allowed)
		}
	}
}

func selinuxOptions(o *runtimeapi.SELinuxOption) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.SelinuxOptions = o })
}

// selinuxLabels checks that the containers of a pod share a level that no other pod has, and that a
// container's config can set another level. Without SELinux, the options are ignored, as Kubernetes
// demands.
func selinuxLabels(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever(), selinuxOptions(&runtimeapi.SELinuxOption{Level: "s0:c7,c9"}))
	if _, lacks := n.Lacks[Labels]; lacks || !hostSELinux() {
		return
	}
	level := func(c *container) string {
		parts := strings.SplitN(strings.TrimRight(c.line(t, "cat", "/proc/1/attr/current"), "\x00"), ":", 4)
		return parts[len(parts)-1]
	}
	testbed.Same(t, level(c), "s0:c7,c9", "requested s0:c7,c9: the level is")
	one, two, other := level(p.start(t, forever())), level(p.start(t, forever())), level(n.pod(t).start(t, forever()))
	if one != two || one == other || !strings.Contains(one, ":c") {
		t.Errorf("the levels of a pod are %q and %q, another pod's is %q", one, two, other)
	}
	_, err := p.tryCreate(t, p.containerConfig(forever(), selinuxOptions(&runtimeapi.SELinuxOption{Level: "s0,c7,c9"})))
	n.rejects(t, err, "an invalid level", codes.InvalidArgument)
}
