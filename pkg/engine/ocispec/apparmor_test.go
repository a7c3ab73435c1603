package ocispec

import (
	"strings"
	"testing"
)

func TestDefaultProfileOfAppArmor(t *testing.T) {
	for _, c := range []struct {
		abi   bool
		own   string
		start string
		peers string
	}{
		{false, "", "include if exists <tunables/global>\n\nprofile berth-default ", "{runc,crun,unconfined}"},
		{true, "unconfined\n", "abi <abi/3.0>,\ninclude ", "{unconfined,runc,crun,unconfined}"},
		{true, "/usr/bin/berth (enforce)\n", "abi <abi/3.0>,\ninclude ", "{/usr/bin/berth,runc,crun,unconfined}"},
	} {
		got := profileText(c.abi, c.own)
		if !strings.HasPrefix(got, c.start) || !strings.Contains(got, "signal (receive) peer="+c.peers+",\n") || strings.Contains(got, "{name}") {
			t.Errorf("profileText(%v, %q):\n%s", c.abi, c.own, got)
		}
	}
}
