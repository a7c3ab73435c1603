package task

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestShimOptions(t *testing.T) {
	d := &handler.Definition{Name: "x", Path: "/bin/containerd-shim-runc-v2", Root: "/run/r", ShimOptions: map[string]any{"BinaryName": "/bin/crun", "NoNewKeyring": true}}
	a := test.Value(shimOptions(d, pod.Plan{}, true))(t)
	m := test.Value(a.UnmarshalNew())(t)
	text, _ := json.Marshal(m)
	for _, want := range []string{`"binary_name":"/bin/crun"`, `"no_new_keyring":true`, `"systemd_cgroup":true`, `"root":"/run/r"`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	d.ShimOptions["Nonsense"] = 1
	test.Is(t, test.Err(shimOptions(d, pod.Plan{}, true)), errdefs.IsInvalidArgument, "an unknown option")
	kata := &handler.Definition{Path: "/opt/kata/bin/containerd-shim-kata-v2", ConfigPath: "/etc/kata.toml"}
	b, err := shimOptions(kata, pod.Plan{}, false)
	if err != nil || !strings.Contains(b.String(), "/etc/kata.toml") {
		t.Errorf("Kata's options are %v, %v", b, err)
	}
	// containerd writes no prefix, because shims with typeurl before version 2 do not accept one.
	if a.GetTypeUrl() != "containerd.runc.v1.Options" || b.GetTypeUrl() != "runtimeoptions.v1.Options" {
		t.Errorf("the types are %q and %q", a.GetTypeUrl(), b.GetTypeUrl())
	}
}

func TestSupervisorKey(t *testing.T) {
	d := handler.Definition{Name: "runc", Type: handler.OCI, Path: "/a"}
	runtime := func(hash string) []keep.Binary { return []keep.Binary{{SHA256: hash}} }
	base := SupervisorKey(&d, runtime("1"), "shim", strings.Repeat("0", pod.IDLength))
	other := d
	other.Path = "/b"
	for what, key := range map[string]string{
		"another definition":     SupervisorKey(&other, runtime("1"), "shim", strings.Repeat("0", pod.IDLength)),
		"another runtime binary": SupervisorKey(&d, runtime("2"), "shim", strings.Repeat("0", pod.IDLength)),
		"another driven runtime": SupervisorKey(&d, append(runtime("1"), runtime("2")...), "shim", strings.Repeat("0", pod.IDLength)),
		"another supervisor":     SupervisorKey(&d, runtime("1"), "shim2", strings.Repeat("0", pod.IDLength)),
	} {
		if key == base {
			t.Errorf("%s shares supervisor %s", what, key)
		}
	}
	if again := SupervisorKey(&d, runtime("1"), "shim", strings.Repeat("1", pod.IDLength)); again != base {
		t.Error("two pods of one handler have two supervisors")
	}
	d.Supervision = handler.SupervisionPod
	if SupervisorKey(&d, nil, "", strings.Repeat("0", pod.IDLength)) == SupervisorKey(&d, nil, "", strings.Repeat("1", pod.IDLength)) {
		t.Error("two pods share a supervisor although each should have its own")
	}
}
