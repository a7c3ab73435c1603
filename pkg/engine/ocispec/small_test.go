package ocispec

import (
	"fmt"
	"maps"
	"path"
	"strings"
	"syscall"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestStopSignal(t *testing.T) {
	for _, c := range []struct {
		asked runtimeapi.Signal
		image string
		sig   syscall.Signal
		name  string
	}{
		{0, "", syscall.SIGTERM, "SIGTERM"},
		{0, "SIGQUIT", syscall.SIGQUIT, "SIGQUIT"},
		{0, "quit", syscall.SIGQUIT, "SIGQUIT"},
		{0, "3", syscall.SIGQUIT, "SIGQUIT"},
		{0, "SIGRTMIN+3", 37, "SIGRTMIN+3"},
		{0, "RTMAX-1", 63, "SIGRTMAX-1"},
		{0, "nonsense", syscall.SIGTERM, "SIGTERM"},
		{0, "0", syscall.SIGTERM, "SIGTERM"},
		{0, "-9", syscall.SIGTERM, "SIGTERM"},
		{runtimeapi.Signal_SIGNAL_SIGUSR1, "SIGQUIT", syscall.SIGUSR1, "SIGUSR1"},
		{runtimeapi.Signal_SIGNAL_SIGRTMIN, "", 34, "SIGRTMIN"},
		{runtimeapi.Signal_SIGNAL_SIGRTMINPLUS15, "", 49, "SIGRTMIN+15"},
		{runtimeapi.Signal_SIGNAL_SIGRTMAXMINUS14, "", 50, "SIGRTMAX-14"},
		{runtimeapi.Signal_SIGNAL_SIGRTMAX, "", 64, "SIGRTMAX"},
	} {
		sig, name := StopSignal(&runtimeapi.ContainerConfig{StopSignal: c.asked}, c.image)
		if sig != c.sig || name != c.name {
			t.Errorf("asked %s, image %q: got %d %s, want %d %s", c.asked, c.image, sig, name, c.sig, c.name)
		}
	}
}

// StopSignal knows every signal of the CRI, and CRISignal converts it back. A signal with
// two names comes back with the first.
func TestEverySignalOfTheCRI(t *testing.T) {
	second := map[runtimeapi.Signal]runtimeapi.Signal{
		runtimeapi.Signal_SIGNAL_SIGCLD: runtimeapi.Signal_SIGNAL_SIGCHLD, runtimeapi.Signal_SIGNAL_SIGIOT: runtimeapi.Signal_SIGNAL_SIGABRT,
		runtimeapi.Signal_SIGNAL_SIGPOLL: runtimeapi.Signal_SIGNAL_SIGIO,
	}
	for v := range runtimeapi.Signal_name {
		asked := runtimeapi.Signal(v)
		if asked == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT {
			continue
		}
		sig, name := StopSignal(&runtimeapi.ContainerConfig{StopSignal: asked}, "")
		if sig == syscall.SIGTERM && asked != runtimeapi.Signal_SIGNAL_SIGTERM || name == "" {
			t.Errorf("%s is not known", asked)
		}
		want := asked
		if first, ok := second[asked]; ok {
			want = first
		}
		test.Equal(t, fmt.Sprintf("%s came back as", asked), CRISignal(name), want)
	}
	test.Equal(t, "an unknown signal came back as", CRISignal("SIGNONE"), runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT)
}

func TestSysctls(t *testing.T) {
	node, pod := runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_POD
	for name, c := range map[string]struct {
		network, ipc runtimeapi.NamespaceMode
		asked, want  map[string]string
	}{
		"defaults":        {pod, pod, nil, map[string]string{sysctlUnprivilegedPort: "0", sysctlPingGroups: "0 2147483647"}},
		"host":            {node, node, nil, map[string]string{}},
		"pod's own value": {pod, pod, map[string]string{"net/ipv4/ip_unprivileged_port_start": "1024"}, map[string]string{"net/ipv4/ip_unprivileged_port_start": "1024", sysctlPingGroups: "0 2147483647"}},
		"ipc alone":       {node, pod, map[string]string{"kernel.shmmax": "1", "kernel.sem": "2", "fs.mqueue.msg_max": "3", "kernel.msgmax": "4"}, map[string]string{"kernel.shmmax": "1", "kernel.sem": "2", "fs.mqueue.msg_max": "3", "kernel.msgmax": "4"}},
	} {
		cfg := &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			Sysctls:         c.asked,
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Network: c.network, Ipc: c.ipc}},
		}}
		if got := Sysctls(cfg, modernNode()); !maps.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// For any pattern and any annotation of a pod, berth's own annotations are kept, and
// another annotation passes only if the pattern matches.
func FuzzAnnotations(f *testing.F) {
	f.Add("io.example/*", "io.example/a", "v")
	f.Add("*", annotationSandboxID, "forged")
	f.Add("[", "[", "v")
	f.Add("a/[^b]?\\*", "a/cd*", "")
	f.Fuzz(func(t *testing.T, pattern, key, value string) {
		sb := testSandbox()
		sb.Definition.PodAnnotations = []string{pattern}
		sb.Config.Annotations = map[string]string{key: value}
		own := podIdentity(sb, "sandbox")
		got := annotations(nil, sb.Definition, sb.Config, nil, own)
		for k, v := range own {
			test.Equal(t, fmt.Sprint(k), got[k], v)
		}
		_, isOwn := own[key]
		_, passed := got[key]
		if match, err := path.Match(pattern, key); !isOwn && passed != (err == nil && match) {
			t.Errorf("pattern %q, key %q: passed is %v", pattern, key, passed)
		}
	})
}

func TestSELinuxLevels(t *testing.T) {
	for level, ok := range map[string]bool{
		"s0": true, "s0:c1": true, "s0:c1,c2": true, "s0-s0:c0.c1023": true, "s0:c1-s1:c2": true, "s0:c0.c5,c7": true,
		"": true, "x": false, "s0:c1;rm": false, "s0:": false, "s0:c1,": false, "s0\x20": false,
	} {
		_, err := labelOptions(&runtimeapi.SELinuxOption{Level: level})
		if (err == nil) != ok {
			t.Errorf("level %q: got %v", level, err)
		}
	}
	got, err := labelOptions(&runtimeapi.SELinuxOption{User: "u", Role: "r", Type: "t", Level: "s0"})
	if err != nil || strings.Join(got, " ") != "user:u role:r type:t level:s0" {
		t.Errorf("got %v, %v", got, err)
	}
}
