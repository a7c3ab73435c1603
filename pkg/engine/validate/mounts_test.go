package validate

import (
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestImageMappings(t *testing.T) {
	ids := func(host, length uint32) []*runtimeapi.IDMapping {
		return []*runtimeapi.IDMapping{{HostId: host, Length: length}}
	}
	mapped := &runtimeapi.UserNamespace{Uids: ids(100_000, 65_536), Gids: ids(200_000, 65_536)}
	for name, test := range map[string]struct {
		pod        *runtimeapi.UserNamespace
		uids, gids []*runtimeapi.IDMapping
		refused    bool
	}{
		"none":                           {},
		"none in a user namespace":       {pod: mapped},
		"the pod's mappings":             {pod: mapped, uids: ids(100_000, 65_536), gids: ids(200_000, 65_536)},
		"some without a user namespace":  {uids: ids(1, 1), gids: ids(1, 1), refused: true},
		"other users":                    {pod: mapped, uids: ids(1, 65_536), gids: ids(200_000, 65_536), refused: true},
		"other groups":                   {pod: mapped, uids: ids(100_000, 65_536), gids: ids(100_000, 65_536), refused: true},
		"fewer IDs":                      {pod: mapped, uids: ids(100_000, 9), gids: ids(200_000, 9), refused: true},
		"two ranges":                     {pod: mapped, uids: append(ids(100_000, 65_536), ids(1, 1)...), gids: ids(200_000, 65_536), refused: true},
		"a range that begins after root": {pod: mapped, uids: []*runtimeapi.IDMapping{{HostId: 100_000, ContainerId: 1, Length: 65_536}}, refused: true},
	} {
		err := ImageMappings(&runtimeapi.Mount{UidMappings: test.uids, GidMappings: test.gids}, test.pod)
		if test.refused != errdefs.IsInvalidArgument(err) || !test.refused && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
