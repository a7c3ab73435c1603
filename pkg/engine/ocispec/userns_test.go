package ocispec

import (
	"fmt"
	"math"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestPingGroupsOfUserNamespaces(t *testing.T) {
	for _, tc := range []struct {
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
		ids := []*runtimeapi.IDMapping{{HostId: tc.host, Length: tc.length}}
		cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
		test.Equal(t, fmt.Sprintf("%d ids from %d", tc.length, tc.host), Sysctls(cfg, modernNode())[sysctlPingGroups], tc.want)
	}
}
