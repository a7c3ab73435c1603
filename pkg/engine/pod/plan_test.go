package pod

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func TestPlanSandbox(t *testing.T) {
	const node, pod, container = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER
	runc, runsc := &probe.Runtime{Name: "runc"}, &probe.Runtime{Name: "runsc"}
	for name, tc := range map[string]struct {
		config *runtimeapi.PodSandboxConfig
		d      handler.Definition
		rt     *probe.Runtime
		want   Plan
	}{
		"usual pod has no process": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.OCI}, runc,
			Plan{Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"shared PID namespace needs a process": {
			podConfig(&runtimeapi.NamespaceOption{Pid: pod}), handler.Definition{Type: handler.OCI}, runc,
			Plan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"no linux block means POD everywhere": {
			&runtimeapi.PodSandboxConfig{}, handler.Definition{Type: handler.OCI}, runc,
			Plan{Process: true, Net: true, IPC: true, UTS: true, Runtime: "runc"},
		},
		"host network has the host's name": {
			podConfig(&runtimeapi.NamespaceOption{Network: node, Pid: node}), handler.Definition{Type: handler.OCI}, runc,
			Plan{IPC: true, Runtime: "runc"},
		},
		"host ipc": {
			podConfig(&runtimeapi.NamespaceOption{Ipc: node, Pid: container}), handler.Definition{Type: handler.OCI}, runc,
			Plan{Net: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"a runtime with its own kernel needs a first container": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.OCI}, runsc,
			Plan{Process: true, Kernel: "gvisor", Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runsc"},
		},
		"a shim needs a process": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.Shim}, &probe.Runtime{},
			Plan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0"},
		},
		"a handler can require a process": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}),
			handler.Definition{Type: handler.OCI, SandboxProcess: handler.SandboxProcessAlways}, runc,
			Plan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := NewPlan(tc.config, &tc.d, tc.rt); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func podConfig(o *runtimeapi.NamespaceOption) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Hostname: "web-0",
		Linux:    &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o}},
	}
}

func TestPodUser(t *testing.T) {
	config := func(u *runtimeapi.UserNamespace) *runtimeapi.PodSandboxConfig {
		return &runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{UsernsOptions: u},
		}}}
	}
	for name, c := range map[string]*runtimeapi.PodSandboxConfig{
		"nothing": {}, "no options": config(nil), "no mappings": config(&runtimeapi.UserNamespace{}), "the host's": config(&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}),
	} {
		if u := podUser(c); u != nil {
			t.Errorf("%s: %+v", name, u)
		}
	}
	one := []*runtimeapi.IDMapping{{HostId: 7, Length: 9}}
	u := podUser(config(&runtimeapi.UserNamespace{Uids: one, Gids: one}))
	if u == nil || u.UIDs.HostID != 7 || u.GIDs.Size != 9 {
		t.Fatalf("mapped: %+v", u)
	}
	plan := &Plan{User: u}
	if of := plan.UserNamespace(); of.GetUids()[0].GetHostId() != 7 || of.GetUids()[0].GetLength() != 9 || of.GetGids()[0].GetLength() != 9 {
		t.Errorf("the namespace is %v", of)
	}
	if of := (&Plan{}).UserNamespace(); of != nil {
		t.Errorf("without a user, the namespace is %v", of)
	}
	if uid, gid := plan.Root(); uid != 7 || gid != 7 {
		t.Errorf("root is %d:%d", uid, gid)
	}
	if uid, gid := (&Plan{}).Root(); uid != 0 || gid != 0 {
		t.Errorf("without a user, root is %d:%d", uid, gid)
	}
}
