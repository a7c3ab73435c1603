package sysctl

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestNamespaceOf(t *testing.T) {
	for name, want := range map[string]Namespace{
		"net.ipv4.ip_forward": Network,
		"net/ipv4/ip_forward": Network,
		"net.core.somaxconn":  Network,
		"network.thing":       None,
		"net":                 None,
		"kernel.shmmax":       IPC,
		"kernel/sem":          IPC,
		"kernel.sem_next_id":  IPC,
		"kernel.shm_next_id":  IPC,
		"kernel.msg_next_id":  IPC,
		"kernel.auto_msgmni":  IPC,
		"kernel.shmfuture":    None,
		"fs.mqueue.msg_max":   IPC,
		"fs.file-max":         None,
		"kernel.domainname":   UTS,
		"kernel.hostname":     UTS,
		"kernel.pid_max":      None,
		"vm.swappiness":       None,
		"":                    None,
	} {
		test.Equal(t, fmt.Sprintf("NamespaceOf(%q)", name), NamespaceOf(name), want)
	}
}

func TestKey(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":               "net/ipv4/ip_forward",
		"net/ipv4/ip_forward":               "net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.100/forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"net.ipv4.conf.eth0/100.forwarding": "net/ipv4/conf/eth0.100/forwarding",
		"single":                            "single",
		"net/../kernel/panic":               "",
		"net...kernel.panic":                "",
		"/net/x":                            "",
		"":                                  "",
	} {
		test.Equal(t, fmt.Sprintf("Key(%q)", name), Key(name), want)
	}
}

func TestRefusal(t *testing.T) {
	all := func(Namespace) bool { return true }
	none := func(Namespace) bool { return false }
	for _, c := range []struct {
		name string
		own  func(Namespace) bool
		says string // "" if the pod can have it
	}{
		{"net.core.somaxconn", all, ""},
		{"net.core.somaxconn", none, "network namespace, which the pod shares"},
		{"kernel.sem_next_id", all, ""},
		{"kernel.auto_msgmni", all, ""},
		{"kernel/sem", none, "ipc namespace, which the pod shares"},
		{"kernel.domainname", all, ""},
		{"kernel.domainname", none, "uts namespace, which the pod shares"},
		{"kernel.hostname", all, "hostname of the pod"},
		{"kernel.hostname", none, "hostname of the pod"},
		{"vm.swappiness", all, "whole node"},
		{"net/../kernel/panic", all, "not the name"},
	} {
		if got := Refusal(c.name, c.own); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.name, got, c.says)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, name := range []string{"net.ipv4.x", "net/../x", "net//x", "net.ipv4.conf.eth0/1.x", "\x00", "net/./x", "net./x"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		key := Key(name)
		if strings.Contains("/"+key+"/", "/../") || strings.ContainsRune(key, 0) || key == "" && NamespaceOf(name) != None {
			t.Errorf("%q leads to %q", name, key)
		}
	})
}
