package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

func podConfig(o *runtimeapi.NamespaceOption) *runtimeapi.PodSandboxConfig {
	return &runtimeapi.PodSandboxConfig{
		Hostname: "web-0",
		Linux:    &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o}},
	}
}

func TestPlanSandbox(t *testing.T) {
	const node, pod, container = runtimeapi.NamespaceMode_NODE, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER
	runc, runsc := &probe.Runtime{Name: "runc"}, &probe.Runtime{Name: "runsc", OwnKernel: true}
	for name, tc := range map[string]struct {
		config *runtimeapi.PodSandboxConfig
		d      handler.Definition
		rt     *probe.Runtime
		want   sandboxPlan
	}{
		"usual pod has no process": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.OCI}, runc,
			sandboxPlan{Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"shared PID namespace needs one": {
			podConfig(&runtimeapi.NamespaceOption{Pid: pod}), handler.Definition{Type: handler.OCI}, runc,
			sandboxPlan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"no linux block means POD everywhere": {
			&runtimeapi.PodSandboxConfig{}, handler.Definition{Type: handler.OCI}, runc,
			sandboxPlan{Process: true, Net: true, IPC: true, UTS: true, Runtime: "runc"},
		},
		"host network has the host's name": {
			podConfig(&runtimeapi.NamespaceOption{Network: node, Pid: node}), handler.Definition{Type: handler.OCI}, runc,
			sandboxPlan{IPC: true, Runtime: "runc"},
		},
		"host ipc": {
			podConfig(&runtimeapi.NamespaceOption{Ipc: node, Pid: container}), handler.Definition{Type: handler.OCI}, runc,
			sandboxPlan{Net: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
		"a runtime with its own kernel needs a first container": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.OCI}, runsc,
			sandboxPlan{Process: true, OwnKernel: true, Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runsc"},
		},
		"a shim too": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}), handler.Definition{Type: handler.Shim}, &probe.Runtime{},
			sandboxPlan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0"},
		},
		"so does who says so": {
			podConfig(&runtimeapi.NamespaceOption{Pid: container}),
			handler.Definition{Type: handler.OCI, SandboxProcess: handler.SandboxProcessAlways}, runc,
			sandboxPlan{Process: true, Net: true, IPC: true, UTS: true, Hostname: "web-0", Runtime: "runc"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := planSandbox(tc.config, &tc.d, tc.rt); got != tc.want {
				t.Errorf("got  %+v\nwant %+v", got, tc.want)
			}
		})
	}
}

func TestPinRequestTakesOnlyTheNamespacesOwnSysctls(t *testing.T) {
	sysctls := map[string]string{"net.ipv4.tcp_syncookies": "1", "kernel.shmmax": "1", "vm.swappiness": "1"}
	got := sandboxPlan{Net: true}.pinRequest("/d", "/n", sysctls)
	if len(got.Sysctls) != 1 || got.Sysctls["net.ipv4.tcp_syncookies"] != "1" || got.NetPath != "/n" {
		t.Errorf("got %+v", got)
	}
	if got := (sandboxPlan{IPC: true}).pinRequest("/d", "/n", sysctls); got.Sysctls["kernel.shmmax"] != "1" || got.NetPath != "" {
		t.Errorf("got %+v", got)
	}
}

func TestNames(t *testing.T) {
	n := reserve.NewNames()
	if err := n.Reserve("pod", "a"); err != nil {
		t.Fatal(err)
	}
	if err := n.Reserve("pod", "a"); err != nil {
		t.Errorf("the owner itself is refused: %v", err)
	}
	err := n.Reserve("pod", "b")
	if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "a") {
		t.Errorf("second owner: %v", err)
	}
	n.Release("pod", "b") // not its owner
	if err := n.Reserve("pod", "b"); err == nil {
		t.Error("a stranger released the name")
	}
	n.Release("pod", "a")
	if err := n.Reserve("pod", "b"); err != nil {
		t.Error(err)
	}
}

func TestTakenNameSaysWhatToDo(t *testing.T) {
	k := deafCore(t)
	c := deafContainer(t, k, handler.Definition{})
	s, o := c.sandbox, newObjects()
	o.addSandbox(s)
	o.addContainer(c)
	n := reserve.NewNames()
	for owner, want := range map[string]string{s.ID(): "crictl rmp -f " + s.ID(), c.ID(): "crictl rm -f " + c.ID(), "new": "wait until that ends"} {
		if err := n.Reserve("of "+owner, owner); err != nil {
			t.Fatal(err)
		}
		err := o.taken(n.Reserve("of "+owner, "another"))
		if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "of "+owner) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "next attempt") {
			t.Errorf("%s: %v", owner, err)
		}
	}
}

func TestUndoRunsLastFirstUpToTheFirstFailure(t *testing.T) {
	var order []string
	broken := errors.New("broken")
	cause := broken
	u := &undo{}
	u.add("a", func(context.Context) error { order = append(order, "a"); return nil })
	u.add("b", func(context.Context) error { order = append(order, "b"); return cause })
	u.add("c", func(ctx context.Context) error { order = append(order, "c"); return ctx.Err() })
	if err := u.run(); !errors.Is(err, broken) || !strings.Contains(err.Error(), "undo b") {
		t.Errorf("run: %v", err)
	}
	cause = nil
	if err := u.run(); err != nil {
		t.Errorf("the second run: %v", err)
	}
	if got := strings.Join(order, ""); got != "cbba" {
		t.Errorf("order %q, want cb and ba", got)
	}
}

func TestFind(t *testing.T) {
	long := strings.Repeat("a", idLength)
	all := map[string]int{long: 1, "ab" + long[2:]: 2, "cd" + long[2:]: 3}
	for id, want := range map[string]int{long: 1, "ab": 2, "cd": 3} {
		if got, err := find(all, "sandbox", id); err != nil || got != want {
			t.Errorf("find %q: %d, %v", id, got, err)
		}
	}
	for id, class := range map[string]func(error) bool{
		"a": errdefs.IsInvalidArgument, "": errdefs.IsInvalidArgument, "ef": errdefs.IsNotFound, strings.Repeat("b", idLength): errdefs.IsNotFound,
	} {
		if _, err := find(all, "sandbox", id); !class(err) {
			t.Errorf("find %q: %v", id, err)
		}
	}
}

func TestClockNeverRepeats(t *testing.T) {
	c := &clock{}
	future := time.Now().Add(time.Hour).UnixNano()
	c.seen(future)
	last := future
	for range 1000 {
		if now := c.now(); now <= last {
			t.Fatalf("%d after %d", now, last)
		} else {
			last = now
		}
	}
}

func TestMessageKeepsWhatThisBuildDoesNotKnow(t *testing.T) {
	config := &runtimeapi.ContainerConfig{Envs: []*runtimeapi.KeyValue{{Key: "K", Value: []byte{0xff, 0}}}}
	config.ProtoReflect().SetUnknown([]byte{0xf8, 0x3f, 0x01}) // field 1023, varint 1
	in := message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig]{msg: config}
	text, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig]
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(in.msg, out.msg) {
		t.Errorf("got %v", out.msg)
	}
	var none message[runtimeapi.ContainerConfig, *runtimeapi.ContainerConfig]
	if text, _ := json.Marshal(none); string(text) != "null" || json.Unmarshal(text, &none) != nil || none.msg != nil {
		t.Errorf("no message became %s, %v", text, none.msg)
	}
}

func TestExitReason(t *testing.T) {
	for _, tc := range []struct {
		code         int32
		oom, unknown bool
		want         string
	}{
		{0, false, false, "Completed"}, {1, false, false, "Error"}, {137, false, false, "Error"},
		{137, true, false, "OOMKilled"}, {0, true, false, "OOMKilled"}, {255, false, true, "Unknown"},
	} {
		if got := exitReason(tc.code, tc.oom, tc.unknown); got != tc.want {
			t.Errorf("exitReason(%d, %v, %v) = %s, want %s", tc.code, tc.oom, tc.unknown, got, tc.want)
		}
	}
}

func TestResolvConf(t *testing.T) {
	got := resolvConf(&runtimeapi.DNSConfig{Servers: []string{"10.0.0.1", "10.0.0.2"}, Searches: []string{"a.b", "c"}, Options: []string{"ndots:5"}})
	if want := "search a.b c\nnameserver 10.0.0.1\nnameserver 10.0.0.2\noptions ndots:5\n"; got != want {
		t.Errorf("got %q", got)
	}
	if got := resolvConf(&runtimeapi.DNSConfig{}); got != "" {
		t.Errorf("an empty configuration became %q", got)
	}
}

func TestShimOptions(t *testing.T) {
	d := &handler.Definition{Name: "x", Path: "/bin/containerd-shim-runc-v2", Root: "/run/r", ShimOptions: map[string]any{"BinaryName": "/bin/crun", "NoNewKeyring": true}}
	a, err := shimOptions(d, sandboxPlan{}, true)
	if err != nil {
		t.Fatal(err)
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		t.Fatal(err)
	}
	text, _ := json.Marshal(m)
	for _, want := range []string{`"binary_name":"/bin/crun"`, `"no_new_keyring":true`, `"systemd_cgroup":true`, `"root":"/run/r"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	d.ShimOptions["Nonsense"] = 1
	if _, err := shimOptions(d, sandboxPlan{}, true); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an unknown option gives %v", err)
	}
	kata := &handler.Definition{Path: "/opt/kata/bin/containerd-shim-kata-v2", ConfigPath: "/etc/kata.toml"}
	b, err := shimOptions(kata, sandboxPlan{}, false)
	if err != nil || !strings.Contains(b.String(), "/etc/kata.toml") {
		t.Errorf("%v, %v", b, err)
	}
	// As containerd writes them: shims of typeurl before version 2 know no prefix.
	if a.GetTypeUrl() != "containerd.runc.v1.Options" || b.GetTypeUrl() != "runtimeoptions.v1.Options" {
		t.Errorf("the types are %q and %q", a.GetTypeUrl(), b.GetTypeUrl())
	}
}

func TestSupervisorKey(t *testing.T) {
	d := handler.Definition{Name: "runc", Type: handler.OCI, Path: "/a"}
	runtime := func(hash string) []keep.Binary { return []keep.Binary{{SHA256: hash}} }
	base := supervisorKey(&d, runtime("1"), "shim", strings.Repeat("0", idLength))
	other := d
	other.Path = "/b"
	for what, key := range map[string]string{
		"another definition":     supervisorKey(&other, runtime("1"), "shim", strings.Repeat("0", idLength)),
		"another runtime binary": supervisorKey(&d, runtime("2"), "shim", strings.Repeat("0", idLength)),
		"another driven runtime": supervisorKey(&d, append(runtime("1"), runtime("2")...), "shim", strings.Repeat("0", idLength)),
		"another supervisor":     supervisorKey(&d, runtime("1"), "shim2", strings.Repeat("0", idLength)),
	} {
		if key == base {
			t.Errorf("%s shares supervisor %s", what, key)
		}
	}
	if again := supervisorKey(&d, runtime("1"), "shim", strings.Repeat("1", idLength)); again != base {
		t.Error("two pods of one handler have two supervisors")
	}
	d.Supervision = handler.SupervisionPod
	if supervisorKey(&d, nil, "", strings.Repeat("0", idLength)) == supervisorKey(&d, nil, "", strings.Repeat("1", idLength)) {
		t.Error("two pods share a supervisor that each should have alone")
	}
}
