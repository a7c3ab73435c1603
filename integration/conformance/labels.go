package conformance

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// hostAppArmor and hostSELinux say what this host's kernel enforces.
func hostAppArmor() bool {
	return strings.HasPrefix(readFile("/sys/module/apparmor/parameters/enabled"), "Y")
}

func hostSELinux() bool { return readFile("/sys/fs/selinux/enforce") != "" }

func apparmor(p *runtimeapi.SecurityProfile) containerOption {
	return security(func(s *runtimeapi.LinuxContainerSecurityContext) { s.Apparmor = p })
}

// apparmorProfiles: a pod must not run unconfined that asked for a profile which
// this node cannot give. Where there is no AppArmor nothing else is refused.
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
	// Nothing but the profile confines this container: it has no masked paths, and capabilities.
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

// selinuxLabels: the containers of a pod share a level that no other pod has, and
// one that was asked for is taken. Where there is no SELinux, options are no
// reason not to run, as Kubernetes has it.
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
	testbed.Same(t, level(c), "s0:c7,c9", "asked for s0:c7,c9: the level is")
	one, two, other := level(p.start(t, forever())), level(p.start(t, forever())), level(n.pod(t).start(t, forever()))
	if one != two || one == other || !strings.Contains(one, ":c") {
		t.Errorf("the levels of a pod are %q and %q, another pod's is %q", one, two, other)
	}
	_, err := p.tryCreate(t, p.containerConfig(forever(), selinuxOptions(&runtimeapi.SELinuxOption{Level: "s0,c7,c9"})))
	n.rejects(t, err, "a level that is none", codes.InvalidArgument)
}
