package ocispec

import (
	"math"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPingGroupsOfUserNamespaces(t *testing.T) {
	for _, test := range []struct {
		host, length uint32
		want         string
	}{
		{100_000, 65_536, "0 65535"},
		{math.MaxInt32, 10, "0 0"},
		{math.MaxInt32 - 5, 10, "0 5"},
		{0, math.MaxUint32, "0 2147483647"},
		{1 << 31, 65_536, ""},
	} {
		cfg := podConfig()
		ids := []*runtimeapi.IDMapping{{HostId: test.host, Length: test.length}}
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
		if got := Sysctls(cfg, modernNode())[sysctlPingGroups]; got != test.want {
			t.Errorf("%d ids from %d: %q, want %q", test.length, test.host, got, test.want)
		}
	}
}
