package pin

import "testing"

func TestNamespaceOf(t *testing.T) {
	tests := map[string]Namespace{
		"net.ipv4.ip_forward": NetNamespace,
		"net/ipv4/ip_forward": NetNamespace,
		"net.core.somaxconn":  NetNamespace,
		"network.thing":       NoNamespace,
		"net":                 NoNamespace,
		"kernel.shmmax":       IPCNamespace,
		"kernel/sem":          IPCNamespace,
		"kernel.msgmax":       IPCNamespace,
		"fs.mqueue.msg_max":   IPCNamespace,
		"fs.file-max":         NoNamespace,
		"kernel.domainname":   UTSNamespace,
		"kernel.hostname":     NoNamespace,
		"kernel.pid_max":      NoNamespace,
		"vm.swappiness":       NoNamespace,
		"":                    NoNamespace,
	}
	for name, want := range tests {
		if got := NamespaceOf(name); got != want {
			t.Errorf("NamespaceOf(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestSysctlKey(t *testing.T) {
	tests := map[string]string{
		"net.ipv4.ip_forward":               "net/ipv4/ip_forward",
		"net/ipv4/ip_forward":               "net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.100/forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"net.ipv4.conf.eth0/100.forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"single":                            "single",
	}
	for name, want := range tests {
		if got := sysctlKey(name); got != want {
			t.Errorf("sysctlKey(%q) = %q, want %q", name, got, want)
		}
	}
}

func FuzzSysctl(f *testing.F) {
	for _, name := range []string{"net.ipv4.x", "net/../x", "net//x", "net.ipv4.conf.eth0/1.x", "\x00", "net/./x", "net./x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		r := Request{Net: true, IPC: true, UTS: true, Sysctls: map[string]string{name: "1"}}
		writes, err := r.sysctls()
		if err != nil {
			return
		}
		for _, w := range writes {
			if !w.clean() || NamespaceOf(name) == NoNamespace {
				t.Errorf("%q is let through as %q", name, w.key)
			}
		}
	})
}
