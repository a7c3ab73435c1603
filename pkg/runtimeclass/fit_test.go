package runtimeclass

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

func pod(t *testing.T, spec, container string) *Pod {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: p" + spec + "\n  containers:\n  - name: c\n    image: i\n" + container
	objects, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return objects[0].Pod
}

func TestRequirements(t *testing.T) {
	for _, c := range []struct{ what, spec, container, want string }{
		{"nothing", "", "", ""},
		{"host namespaces", "\n  hostNetwork: true\n  hostPID: true\n  hostIPC: true", "", "host-network spec.hostNetwork: true; host-pid spec.hostPID: true; host-ipc spec.hostIPC: true"},
		{"own users", "\n  hostUsers: false", "", "user-namespaces spec.hostUsers: false; id-mapped-mounts spec.hostUsers: false"},
		{"users of the host", "\n  hostUsers: true", "", ""},
		{"privileged", "", "    securityContext: {privileged: true}", "privileged spec.containers[0].securityContext.privileged: true"},
		{"an init container", "\n  initContainers: [{name: i, image: i, securityContext: {privileged: true}}]", "", "privileged spec.initContainers[0].securityContext.privileged: true"},
		{"seccomp of the pod", "\n  securityContext: {seccompProfile: {type: RuntimeDefault}}", "", "seccomp spec.securityContext.seccompProfile.type: RuntimeDefault"},
		{"seccomp of none", "\n  securityContext: {seccompProfile: {type: RuntimeDefault}}", "    securityContext: {seccompProfile: {type: Unconfined}}", ""},
		{"seccomp of a privileged container", "\n  securityContext: {seccompProfile: {type: RuntimeDefault}}", "    securityContext: {privileged: true}", "privileged spec.containers[0].securityContext.privileged: true"},
		{"AppArmor", "", "    securityContext: {appArmorProfile: {type: Localhost, localhostProfile: x}}", "apparmor spec.containers[0].securityContext.appArmorProfile.type: Localhost"},
		{"AppArmor of a privileged container", "", "    securityContext: {privileged: true, appArmorProfile: {type: RuntimeDefault}}", "privileged spec.containers[0].securityContext.privileged: true"},
		{"AppArmor as it was", ", annotations: {container.apparmor.security.beta.kubernetes.io/c: runtime/default}", "", `apparmor metadata.annotations["container.apparmor.security.beta.kubernetes.io/c"]: runtime/default`},
		{"no AppArmor as it was", ", annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}", "", ""},
		{"SELinux", "\n  securityContext: {seLinuxOptions: {level: \"s0:c1\"}}", "", "selinux spec.securityContext.seLinuxOptions: :::s0:c1"},
		{"no SELinux", "\n  securityContext: {seLinuxOptions: {}}", "", ""},
		{"block volumes", "\n  volumes: [{name: v, persistentVolumeClaim: {claimName: v}}]", "    volumeDevices: [{name: v, devicePath: /dev/x}]", "block-volumes spec.containers[0].volumeDevices[0]: /dev/x"},
		{"devices of a plugin", "", "    resources: {limits: {cpu: 1, example.com/gpu: 2}}", `devices spec.containers[0].resources.limits["example.com/gpu"]: 2`},
		{"a request alone", "", "    resources: {requests: {hugepages-2Mi: 2Mi}}", `hugepages spec.containers[0].resources.requests["hugepages-2Mi"]: 2Mi`},
		{"devices of a claim", "\n  resourceClaims: [{name: gpu, resourceClaimName: g}]", "    resources: {claims: [{name: gpu}]}", "devices spec.resourceClaims[0]: gpu"},
		{"huge pages as a medium", "\n  volumes: [{name: v, emptyDir: {medium: HugePages-2Mi}}]", "", "hugepages spec.volumes[0].emptyDir.medium: HugePages-2Mi"},
		{"huge pages of the pod", "\n  resources: {limits: {hugepages-1Gi: 1Gi}}", "", `hugepages spec.resources.limits["hugepages-1Gi"]: 1Gi`},
		{"memory as a medium", "\n  volumes: [{name: v, emptyDir: {medium: Memory}}]", "", ""},
		{"recursive read-only", "", "    volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: Enabled}]", "recursive-read-only-mounts spec.containers[0].volumeMounts[0].recursiveReadOnly: Enabled"},
		{"read-only if possible", "", "    volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible}]", ""},
		{"propagation", "", "    volumeMounts: [{name: v, mountPath: /v, mountPropagation: Bidirectional}]", "mount-propagation spec.containers[0].volumeMounts[0].mountPropagation: Bidirectional"},
		{"propagation one way", "", "    volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]", ""},
		{"sysctls", "\n  securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: \"1\"}]}", "", "sysctls spec.securityContext.sysctls[0]: net.ipv4.tcp_syncookies"},
		{"proc", "", "    securityContext: {procMount: Unmasked}", "unmasked-proc spec.containers[0].securityContext.procMount: Unmasked"},
		{"proc as always", "", "    securityContext: {procMount: Default}", ""},
		{"a probe", "", "    livenessProbe: {exec: {command: [cat, /ok]}}", "exec spec.containers[0].livenessProbe.exec: cat /ok"},
		{"a probe over the network", "", "    livenessProbe: {tcpSocket: {port: 1}}", ""},
		{"a hook", "", "    lifecycle: {preStop: {exec: {command: [sync]}}, postStart: {sleep: {seconds: 1}}}", "exec spec.containers[0].lifecycle.preStop.exec: sync"},
	} {
		t.Run(c.what, func(t *testing.T) {
			spec := c.spec
			if rest, ok := strings.CutPrefix(spec, ","); ok {
				spec = "," + rest + "}\nspec:"
			} else {
				spec = "}\nspec:" + spec
			}
			var all []string
			for _, r := range Requirements(pod(t, spec, c.container+"\n").Pod) {
				all = append(all, fmt.Sprintf("%s %s", r.Capability, r))
			}
			if got := strings.Join(all, "; "); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestFit(t *testing.T) {
	table := func(i capability.Isolation, yes, no string) capability.Table {
		all := capability.Table{Isolation: i}
		for _, n := range strings.Fields(yes) {
			all.Set(capability.Name(n), capability.Yes, capability.Ran, "")
		}
		for _, n := range strings.Fields(no) {
			all.Set(capability.Name(n), capability.No, capability.Declared, "it says so")
		}
		return all
	}
	handlers := []Handler{
		{Name: "runc", Default: true, Overhead: measured(9, "2Mi", "1m"), Table: table(capability.SharedKernel, "host-network host-pid seccomp", "")},
		{Name: "crun", Overhead: measured(9, "1Mi", "1m"), Table: table(capability.SharedKernel, "host-network seccomp", "")},
		{Name: "gvisor", Overhead: measured(9, "20Mi", "9m"), Table: table(capability.UserSpaceKernel, "seccomp", "host-network host-pid")},
		{Name: "kata", Table: table(capability.VM, "seccomp", "host-network host-pid")},
		{Name: "other", Table: table("", "", "")},
		{Name: "broken", State: "not-ready", Reason: "it is gone", Table: table(capability.VM, "host-network host-pid seccomp", "")},
	}
	plain := pod(t, "}\nspec:", "")
	network := pod(t, "}\nspec:\n  hostNetwork: true\n  hostPID: true", "")
	for _, c := range []struct {
		what string
		pod  *Pod
		by   Preference
		want string
	}{
		{"any, the strongest first", plain, PreferIsolation, "kata=yes gvisor=yes crun=yes runc=yes other=yes broken=no"},
		{"any, the lightest first", plain, PreferOverhead, "crun=yes runc=yes gvisor=yes kata=yes other=yes broken=no"},
		{"host namespaces", network, PreferIsolation, "runc=yes crun=unknown other=unknown broken=no kata=no gvisor=no"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var all []string
			for _, v := range Fit(c.pod.Pod, handlers, nil, c.by) {
				all = append(all, fmt.Sprintf("%s=%s", v.Handler, v.Fits))
				if len(v.Reasons()) == 0 != (v.Fits == capability.Yes) {
					t.Errorf("%s: %s, and the reasons are %q", v.Handler, v.Fits, v.Reasons())
				}
			}
			if got := strings.Join(all, " "); got != c.want {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		})
	}
	classes := append(class(t, "sandboxed", "handler: kata\n"), class(t, "vm", "handler: kata\n")...)
	for _, v := range Fit(network.Pod, handlers, classes, PreferIsolation) {
		switch v.Handler {
		case "kata":
			if got := strings.Join(v.Reasons(), "\n"); got != "spec.hostNetwork: true needs host-network, but the handler does not support it: it says so\nspec.hostPID: true needs host-pid, but the handler does not support it: it says so" || strings.Join(v.Classes, " ") != "sandboxed vm" {
				t.Errorf("kata: %v: %s", v.Classes, got)
			}
		case "crun":
			if got := strings.Join(v.Reasons(), "\n"); got != "spec.hostPID: true needs host-pid, but the handler may not support it" {
				t.Errorf("crun: %s", got)
			}
		case "broken":
			if got := strings.Join(v.Reasons(), "\n"); got != "the handler is not-ready: it is gone" {
				t.Errorf("broken: %s", got)
			}
		}
	}
}

func TestFitAsksAdmission(t *testing.T) {
	classes := append(class(t, "gvisor", "handler: gvisor\noverhead: {podFixed: {memory: 17Mi}}\n"), class(t, "bare", "handler: crun\n")...)
	handlers := []Handler{{Name: "crun", Default: true}, {Name: "gvisor"}}
	const no = `pods "p" is forbidden: `
	for _, c := range []struct {
		what, spec string
		classes    []Class
		want       string
	}{
		{"no class", "", classes, "crun=yes gvisor=yes"},
		{"its class", "  runtimeClassName: gvisor", classes, "crun=yes gvisor=yes"},
		{"overhead that its class has", "  runtimeClassName: gvisor\n  overhead: {memory: 17Mi}", classes, "crun=yes gvisor=yes"},
		{"overhead that its class has not", "  runtimeClassName: gvisor\n  overhead: {memory: 1Mi}", classes, "crun=yes gvisor=no " + no + "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"},
		{"overhead, and a class without", "  runtimeClassName: bare\n  overhead: {memory: 1Mi}", classes, "gvisor=yes crun=no " + no + "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"other nodes than its class", "  runtimeClassName: gvisor\n  nodeSelector: {a: c}", classes, "crun=yes gvisor=no " + no + "conflict: runtimeClass.scheduling.nodeSelector[a] = b; pod.spec.nodeSelector[a] = c"},
		{"overhead and no class", "  overhead: {memory: 1Mi}", classes, "gvisor=yes crun=no " + no + "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"},
		{"a class that is not known", "  runtimeClassName: gvisor\n  overhead: {memory: 1Mi}", nil, "crun=yes gvisor=yes"},
		{"it lacks something, too", "  runtimeClassName: gvisor\n  hostPID: true\n  overhead: {memory: 1Mi}", classes, "crun=unknown spec.hostPID: true needs host-pid, but the handler may not support it gvisor=no " + no + "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead; spec.hostPID: true needs host-pid, but the handler may not support it"},
	} {
		t.Run(c.what, func(t *testing.T) {
			var all []string
			for _, v := range Fit(pod(t, "}\nspec:\n"+c.spec, "").Pod, handlers, c.classes, PreferIsolation) {
				all = append(all, strings.TrimSpace(fmt.Sprintf("%s=%s %s", v.Handler, v.Fits, strings.Join(v.Reasons(), "; "))))
			}
			if got := strings.Join(all, " "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
