package overheads

import (
	"testing"
)

func TestShowsMachine(t *testing.T) {
	shim := member{name: "containerd-shim-kata-v2", shim: true}
	for name, c := range map[string]struct {
		all  []member
		want bool
	}{
		"nothing":                            {nil, false},
		"the shim alone":                     {[]member{shim}, false},
		"the shim and what serves its files": {[]member{shim, {name: "virtiofsd"}, {name: "virtiofsd"}}, false},
		"a monitor":                          {[]member{shim, {name: "virtiofsd"}, {name: "qemu-system-x86_64"}}, true},
		"a monitor of an unknown name":       {[]member{{name: "vmm"}, shim}, true},
		"a shim that is the monitor":         {[]member{{name: "containerd-shim-kata-v2", shim: true, machine: true}}, true},
	} {
		if got := showsMachine(c.all); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
