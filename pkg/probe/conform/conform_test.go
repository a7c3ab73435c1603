package conform

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

const written = `release 6.1.0
version #1 SMP Debian 6.1.1
boot-id 11111111-2222
device c 1 3 /dev/null
device c 136 0 /dev/pts/0
unreadable /dev/hidden
device c 10 229 /dev/fuse
device b 254 0 /dev/with space
effective 0
bounding 3fffffffff
no-new-privileges 1
seccomp 2
kernel-log false
processes 2
end 
later what a newer one says
`

func TestParse(t *testing.T) {
	s := test.Value(Parse(written))(t)
	if s.Kernel != (Kernel{"6.1.0", "#1 SMP Debian 6.1.1", "11111111-2222"}) || s.Effective != 0 || s.Bounding != 0x3fffffffff ||
		!s.NoNewPrivileges || !s.Filtered || s.KernelLog || s.Processes != 2 {
		t.Errorf("the parsed text is %+v", s)
	}
	test.EqualLists(t, "unreadable files", s.Unreadable, []string{"/dev/hidden"})
	want := []Device{{"/dev/pts/0", false, 136, 0}, {"/dev/fuse", false, 10, 229}, {"/dev/with space", true, 254, 0}}
	test.EqualLists(t, "unusual devices", s.Devices, want)
	begun, _, _ := strings.Cut(written, "end")
	for name, text := range map[string]string{
		"empty text":       "",
		"cut off":          begun,
		"not a number":     strings.Replace(written, "processes 2", "processes two", 1),
		"not a device":     strings.Replace(written, "c 1 3 /dev/null", "c 1", 1),
		"not a capability": strings.Replace(written, "effective 0", "effective all", 1),
	} {
		if s, err := Parse(text); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

func TestBreaches(t *testing.T) {
	node := Kernel{"6.1.0", "#1 SMP Debian", "node"}
	facts := func(i capability.Isolation, change func(*Facts)) Facts {
		f := Facts{Isolation: i, Node: node, Seen: &Seen{Kernel: node, NoNewPrivileges: true, Filtered: true, Processes: 2}}
		if i != capability.SharedKernel {
			f.Seen.Kernel, f.Seen.Filtered = Kernel{"4.19", "#1 SMP other", "pod"}, false
		}
		if change != nil {
			change(&f)
		}
		return f
	}
	shared, user, vm := capability.SharedKernel, capability.UserSpaceKernel, capability.VM
	for _, c := range []struct {
		name string
		set  Set
		f    Facts
		want []string
	}{
		{"a process", SharedKernel, facts(shared, nil), nil},
		{"gVisor", Sandboxed, facts(user, nil), nil},
		{"a virtual machine", Sandboxed, facts(vm, nil), nil},
		{"a virtual machine", VM, facts(vm, nil), nil},
		{"the node's build in a virtual machine", VM, facts(vm, func(f *Facts) { f.Seen.Kernel = Kernel{node.Release, node.Version, "pod"} }), nil},
		{"another build without a boot ID", Sandboxed, facts(user, func(f *Facts) { f.Seen.Kernel.BootID = "" }), nil},
		{"devices of its own kernel", Sandboxed, facts(user, func(f *Facts) {
			f.Seen.Devices = []Device{{"/dev/fuse", false, 10, 229}, {"/dev/net/tun", false, 10, 200}}
		}), nil},
		{"WebAssembly modules", Wasm, Facts{Modules: true}, nil},

		{"a process", Sandboxed, facts(shared, nil), []string{"its pods run on the node's kernel"}},
		{"a process", VM, facts(shared, nil), []string{"its pods run on the node's kernel", "its runtime does not report that it makes virtual machines: isolation is shared-kernel"}},
		{"gVisor", SharedKernel, facts(user, nil), []string{"its pods do not run on the node's kernel, but on 4.19 #1 SMP other", "no seccomp filter is in effect in its pods that requested the default profile"}},
		{"gVisor", VM, facts(user, nil), []string{"its runtime does not report that it makes virtual machines: isolation is user-space-kernel"}},
		{"unknown isolation", VM, facts("", nil), []string{"its runtime does not report that it makes virtual machines: isolation is unknown"}},
		{"a hidden boot ID", Sandboxed, facts(user, func(f *Facts) { f.Seen.Kernel = Kernel{node.Release, node.Version, ""} }), []string{"its pods run on a kernel of the same build as the node's that shows no boot ID"}},
		{"another build with the node's boot ID", Sandboxed, facts(user, func(f *Facts) { f.Seen.Kernel.BootID = "node" }), []string{"its pods run on the node's kernel"}},
		{"devices", Sandboxed, facts(user, func(f *Facts) { f.Seen.Devices = []Device{{"/dev/kvm", false, 10, 232}, {"/dev/sda", true, 8, 0}} }), []string{"its pods have devices that they did not request: /dev/kvm (c 10:232), /dev/sda (b 8:0)"}},
		{"a terminal of the node", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Devices = []Device{{"/dev/pts/0", false, 136, 0}} }), []string{"its pods have devices that they did not request: /dev/pts/0 (c 136:0)"}},
		{"unreadable files", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Unreadable = []string{"/dev/hidden"} }), []string{"its pods have files in /dev that cannot be read: /dev/hidden"}},
		{"another boot ID", SharedKernel, facts(shared, func(f *Facts) { f.Node.BootID = "mounted" }), nil},
		{"another boot ID", Sandboxed, facts(shared, func(f *Facts) { f.Node.BootID = "mounted" }), []string{"its runtime lets pods share the node's kernel"}},
		{"another boot ID, unknown isolation", Sandboxed, facts("", func(f *Facts) { f.Seen.Kernel = Kernel{node.Release, node.Version, "pod"} }), []string{"its pods run on a kernel of the same build as the node's, and its runtime is not known to bring another one"}},
		{"another build, unknown isolation", Sandboxed, facts("", nil), nil},
		{"devices of the node's kernel", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Devices = []Device{{"/dev/fuse", false, 10, 229}} }), []string{"its pods have devices that they did not request: /dev/fuse (c 10:229)"}},
		{"capabilities", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Effective, f.Seen.Bounding = 1<<21, 1<<21|1 }), []string{"its pods have capabilities that they did not request: 0x200000, and may get 0x200001"}},
		{"capabilities in the bounding set", Sandboxed, facts(user, func(f *Facts) { f.Seen.Bounding = 1 }), []string{"its pods have capabilities that they did not request: 0x0, and may get 0x1"}},
		{"new privileges", Sandboxed, facts(vm, func(f *Facts) { f.Seen.NoNewPrivileges = false }), []string{"its pods can gain privileges although they did not request it"}},
		{"others' processes", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Processes = 300 }), []string{"its pods see 300 processes, and have 2"}},
		{"no seccomp filter", SharedKernel, facts(shared, func(f *Facts) { f.Seen.Filtered = false }), []string{"no seccomp filter is in effect in its pods that requested the default profile"}},
		{"the node's log", SharedKernel, facts(shared, func(f *Facts) { f.Seen.KernelLog = true }), []string{"its pods can read the kernel log of the node"}},
		{"the log of another kernel", Sandboxed, facts(user, func(f *Facts) { f.Seen.KernelLog = true }), nil},
		{"no self-check pod", VM, Facts{Isolation: vm, Node: node}, []string{"what its pods see is not known"}},
		{"no WebAssembly modules", Wasm, Facts{}, []string{`it is not for WebAssembly modules only: configure a shim that runs them, and platform = "wasi/wasm"`}},
		{"an unknown set", "sandboxed/v2", facts(user, nil), []string{"this release of berth does not have that set"}},
	} {
		test.EqualLists(t, fmt.Sprintf("%s as %s", c.name, c.set), Breaches(c.set, c.f), c.want)
	}
}

func TestConflict(t *testing.T) {
	for _, a := range Sets() {
		for _, b := range Sets() {
			own := func(s Set) bool { return s == Sandboxed || s == VM }
			if got := Conflict(a, b); (got != "") != (own(a) != own(b)) || got != Conflict(b, a) {
				t.Errorf("%s and %s: %q", a, b, got)
			}
		}
	}
}
