package preflight

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

var update = flag.Bool("update", false, "write the golden file")

// recorded probes a program that prints the recorded output of a runtime.
func recorded(t *testing.T, name string) *probe.Runtime {
	t.Helper()
	from := test.Value(filepath.Abs(filepath.Join("../probe/testdata", name)))(t)
	path := filepath.Join(t.TempDir(), "runtime")
	script := fmt.Sprintf("#!/bin/sh\ncase \"$1\" in\n--version) exec cat %s/version.txt ;;\nfeatures) exec cat %s/features.json ;;\nesac\nexit 1\n", from, from)
	// Renamed into place: a file that any process holds open for writing cannot be run.
	test.Must(t, errors.Join(os.WriteFile(path+".new", []byte(script), 0o755), os.Rename(path+".new", path)))
	return test.Value(probe.New(nil).Probe(t.Context(), &handler.Definition{Name: name, Type: handler.OCI, Path: path}))(t)
}

// runtimes returns handlers of all kinds, on a node with all features.
func runtimes(t *testing.T) []Handler {
	t.Helper()
	node := Node{MountSetattr: true, AppArmor: true, SELinux: true}
	all := []Handler{
		{Name: "kata", Runtime: &probe.Runtime{Path: "/bin/containerd-shim-kata-v2", Version: "3.2.0", ShimAlone: true}},
		{Name: "bare", Runtime: &probe.Runtime{Name: probe.Crun, Version: "1.14", BuildTags: []string{"-SECCOMP", "-APPARMOR", "-SELINUX", "+CRIU"}}},
		{Name: "dead"},
	}
	for _, name := range []string{"runc-1.5.2", "runc-1.1.5", "crun-1.24", "crun-1.8.1", "youki-0.5.7", "runsc-2025", "runsc-2026"} {
		all = append(all, Handler{Name: strings.NewReplacer(".", "-").Replace(name), Runtime: recorded(t, name)})
	}
	hostNetwork := all[len(all)-1]
	hostNetwork.Name, hostNetwork.HostNetwork = "runsc-hostnet", true
	native := all[3]
	native.Name = "native"
	native.UserNamespaces = func() error { return errors.New("the snapshotter native cannot map the IDs of images") }
	native.Checkpoints = func() error { return errors.New("the snapshotter native cannot tell what was written") }
	all = append(all, hostNetwork, native)
	for i := range all {
		all[i].Node = node
	}
	return all
}

func pod(o *runtimeapi.NamespaceOption, labels *runtimeapi.SELinuxOption) func(Handler) *Refusal {
	return func(h Handler) *Refusal {
		return Sandbox(&runtimeapi.PodSandboxConfig{Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: o, SelinuxOptions: labels},
		}}, h)
	}
}

func container(sc *runtimeapi.LinuxContainerSecurityContext, mounts ...*runtimeapi.Mount) func(Handler) *Refusal {
	return func(h Handler) *Refusal {
		return Container(&runtimeapi.ContainerConfig{Mounts: mounts, Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: sc}}, h)
	}
}

type ask struct {
	name  string
	check func(Handler) *Refusal
}

func asked() []ask {
	node := runtimeapi.NamespaceMode_NODE
	mapping := []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}
	users := &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mapping, Gids: mapping}
	labels := &runtimeapi.SELinuxOption{Level: "s0:c1,c2"}
	profile := func(kind runtimeapi.SecurityProfile_ProfileType) *runtimeapi.SecurityProfile {
		return &runtimeapi.SecurityProfile{ProfileType: kind, LocalhostRef: "/profile"}
	}
	byDefault, local := profile(runtimeapi.SecurityProfile_RuntimeDefault), profile(runtimeapi.SecurityProfile_Localhost)
	none := profile(runtimeapi.SecurityProfile_Unconfined)
	type sc = runtimeapi.LinuxContainerSecurityContext
	return []ask{
		{"an ordinary pod", pod(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}, nil)},
		{"a pod without a linux block", func(h Handler) *Refusal { return Sandbox(&runtimeapi.PodSandboxConfig{}, h) }},
		{"hostNetwork", pod(&runtimeapi.NamespaceOption{Network: node}, nil)},
		{"hostPID", pod(&runtimeapi.NamespaceOption{Pid: node}, nil)},
		{"hostIPC", pod(&runtimeapi.NamespaceOption{Ipc: node}, nil)},
		{"a user namespace", pod(&runtimeapi.NamespaceOption{UsernsOptions: users}, nil)},
		{"the host's user namespace", pod(&runtimeapi.NamespaceOption{UsernsOptions: &runtimeapi.UserNamespace{Mode: node}}, nil)},
		{"a user namespace with hostNetwork", pod(&runtimeapi.NamespaceOption{Network: node, UsernsOptions: users}, nil)},
		{"a pod's SELinux level", pod(nil, labels)},
		{"an ordinary container", container(&sc{Seccomp: none, Apparmor: none}, &runtimeapi.Mount{ContainerPath: "/v", Readonly: true})},
		{"a container without a linux block", func(h Handler) *Refusal { return Container(&runtimeapi.ContainerConfig{}, h) }},
		{"pid TARGET", container(&sc{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: "x"}})},
		{"recursive read-only", container(nil, &runtimeapi.Mount{ContainerPath: "/v", Readonly: true, RecursiveReadOnly: true})},
		{"mapped mount", container(nil, &runtimeapi.Mount{ContainerPath: "/v", UidMappings: mapping, GidMappings: mapping})},
		{"mapped image", container(nil, &runtimeapi.Mount{ContainerPath: "/v", Image: &runtimeapi.ImageSpec{Image: "i"}, UidMappings: mapping, GidMappings: mapping})},
		{"Bidirectional", container(nil, &runtimeapi.Mount{ContainerPath: "/v", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL})},
		{"HostToContainer", container(nil, &runtimeapi.Mount{ContainerPath: "/v", Propagation: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER})},
		{"seccomp RuntimeDefault", container(&sc{Seccomp: byDefault})},
		{"seccomp Localhost", container(&sc{Seccomp: local})},
		{"seccomp by the old field", container(&sc{SeccompProfilePath: "runtime/default"})}, //nolint:staticcheck // Old clients send it.
		{"seccomp of a privileged container", container(&sc{Seccomp: byDefault, Privileged: true})},
		{"AppArmor RuntimeDefault", container(&sc{Apparmor: byDefault})},
		{"AppArmor RuntimeDefault of a privileged container", container(&sc{Apparmor: byDefault, Privileged: true})},
		{"AppArmor Localhost of a privileged container", container(&sc{Apparmor: local, Privileged: true})},
		{"a container's SELinux level", container(&sc{SelinuxOptions: labels})},
		{"a checkpoint", Checkpoints},
		{"a checkpoint of a pod", PodCheckpoints},
	}
}

// TestRefusals checks every request with every runtime, and compares the texts
// with testdata/refusals.txt (go test ./pkg/preflight -update).
func TestRefusals(t *testing.T) {
	all := runtimes(t)
	var b strings.Builder
	for _, a := range asked() {
		fmt.Fprintf(&b, "%s\n", a.name)
		for _, h := range all {
			err := Refuse(h, func() []Handler { return all }, a.check)
			switch {
			case err == nil:
				fmt.Fprintf(&b, "  %-14s ok\n", h.Name)
				continue
			case !errdefs.IsFailedPrecondition(err), len(err.Error()) >= 1024, !strings.Contains(err.Error(), fmt.Sprintf("handler %q", h.Name)):
				t.Errorf("%s, %s: %v", a.name, h.Name, err)
			}
			fmt.Fprintf(&b, "  %-14s %v\n", h.Name, err)
		}
	}
	golden := filepath.Join("testdata", "refusals.txt")
	if *update {
		test.Must(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want := test.Value(os.ReadFile(golden))(t)
	got, expected := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(expected)) {
		if i >= len(got) || i >= len(expected) || got[i] != expected[i] {
			t.Fatalf("line %d differs; got\n%s\nwant %s", i+1, strings.Join(got[min(i, len(got)):min(i+1, len(got))], ""), strings.Join(expected[min(i, len(expected)):min(i+1, len(expected))], ""))
		}
	}
}

// If the kernel lacks a feature, the refusal names no handler that supports it. AppArmor and
// SELinux are not required of a runtime if the node does not enforce them.
func TestTheNode(t *testing.T) {
	all := runtimes(t)
	for i := range all {
		all[i].Node = Node{}
	}
	for _, a := range asked() {
		for _, h := range all {
			lack := a.check(h)
			switch {
			case strings.Contains(a.name, "AppArmor"), strings.Contains(a.name, "SELinux"):
				if lack != nil {
					t.Errorf("%s, %s: %v", a.name, h.Name, lack)
				}
			case a.name == "recursive read-only" && h.Runtime != nil:
				err := Refuse(h, func() []Handler { return all }, a.check)
				if !errors.Is(err, crierrors.ErrRROUnsupported) || !strings.Contains(err.Error(), "5.12") || !strings.Contains(err.Error(), "no ready handler") {
					t.Errorf("%s: %v", h.Name, err)
				}
			}
		}
	}
}

// The kubelet recognizes ErrRROUnsupported only at the beginning of an error.
func TestTheKubeletsWord(t *testing.T) {
	all := runtimes(t)
	for _, a := range asked() {
		err := Refuse(all[4], func() []Handler { return all }, a.check)
		if begins := err != nil && strings.HasPrefix(err.Error(), crierrors.ErrRROUnsupported.Error()); begins != errors.Is(err, crierrors.ErrRROUnsupported) {
			t.Errorf("%s: %v", a.name, err)
		}
	}
}

func TestRefusalsStayShort(t *testing.T) {
	var many []Handler
	rt := &probe.Runtime{Name: probe.Crun, Version: "1.24"}
	for i := range 200 {
		many = append(many, Handler{Name: fmt.Sprintf("%s-%03d", strings.Repeat("h", 59), i), Runtime: rt, Node: Node{MountSetattr: true}})
	}
	long := strings.Repeat("/long", 1000)
	h := Handler{
		Name: strings.Repeat("x", 63), Runtime: &probe.Runtime{Path: long, Version: long},
		UserNamespaces: func() error { return errors.New(long) },
	}
	own := h
	own.Runtime = &probe.Runtime{Version: long, ShimAlone: true}
	refusals := 0
	for _, a := range append(asked(), ask{"a deep mount", container(nil,
		&runtimeapi.Mount{ContainerPath: long, Readonly: true, RecursiveReadOnly: true})}) {
		for _, h := range []Handler{h, own} {
			err := Refuse(h, func() []Handler { return many }, a.check)
			if err == nil {
				continue
			}
			refusals++
			if len(err.Error()) >= 1024 {
				t.Errorf("%s: %d bytes: %v", a.name, len(err.Error()), err)
			}
		}
	}
	if refusals < 8 {
		t.Errorf("only %d requests were refused", refusals)
	}
}
