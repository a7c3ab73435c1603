package criu

import (
	"reflect"
	"testing"
)

func TestUnlocking(t *testing.T) {
	for name, c := range map[string]struct {
		program, listed string
		want            [][]string
	}{
		"no chain": {"iptables", "-P INPUT ACCEPT\n-P FORWARD ACCEPT\n-P OUTPUT ACCEPT\n", nil},
		"locked": {
			"iptables", "-P INPUT ACCEPT\n-N CRIU\n-A INPUT -j CRIU\n-A OUTPUT -j CRIU\n-A CRIU -m mark --mark 0xc114 -j ACCEPT\n-A CRIU -j DROP\n",
			[][]string{{"-w", "-D", "INPUT", "-j", "CRIU"}, {"-w", "-D", "OUTPUT", "-j", "CRIU"}, {"-w", "-F", "CRIU"}, {"-w", "-X", "CRIU"}},
		},
		"locked twice": {
			"ip6tables", "-N CRIU\n-A INPUT -j CRIU\n-A INPUT -j CRIU\n",
			[][]string{{"-w", "-D", "INPUT", "-j", "CRIU"}, {"-w", "-D", "INPUT", "-j", "CRIU"}, {"-w", "-F", "CRIU"}, {"-w", "-X", "CRIU"}},
		},
		"partly unlocked":     {"iptables", "-N CRIU\n", [][]string{{"-w", "-F", "CRIU"}, {"-w", "-X", "CRIU"}}},
		"others' chains":      {"iptables", "-N CRIUX\n-A INPUT -j CRIUX\n-A INPUT -s 10.0.0.1/32 -j CRIUX\n", nil},
		"tables":              {"nft", "table ip filter\ntable inet CRIU-1234\ntable inet CRIU-a1\n", [][]string{{"delete", "table", "inet", "CRIU-1234"}, {"delete", "table", "inet", "CRIU-a1"}}},
		"others' tables":      {"nft", "table inet CRIUS\ntable inet mine\n", nil},
		"nft without a table": {"nft", "", nil},
	} {
		if got := unlocking(c.program, c.listed); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
