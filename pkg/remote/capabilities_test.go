package remote

import (
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/probe/capability"
)

func TestCapabilitiesOf(t *testing.T) {
	berth := func(table string) map[string]string {
		return map[string]string{infoKey: `{"generation":3,"default":"runc","handlers":[{"name":"runc","since":1,"capabilities":` + table + `},{"name":"new"}]}`}
	}
	const table = `{"isolation":"vm","isolationSource":"declared","capabilities":{"exec":{"answer":"yes","source":"ran"},"of-next-year":{"answer":"no","source":"probed"}},"more":1}`
	features := []*runtimeapi.RuntimeHandler{
		{Name: "", Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: true}},
		{Name: "runc", Features: &runtimeapi.RuntimeHandlerFeatures{RecursiveReadOnlyMounts: true}}, {Name: "old"},
	}
	for name, tc := range map[string]struct {
		status    *runtimeapi.StatusResponse
		handler   string
		isolation capability.Isolation
		known     int
		want      map[capability.Name]capability.Known
	}{
		"a berth": {&runtimeapi.StatusResponse{Info: berth(table), RuntimeHandlers: features}, "runc", capability.VM, 2, map[capability.Name]capability.Known{
			capability.Exec: {Answer: capability.Yes, Source: capability.Ran}, "of-next-year": {Answer: capability.No, Source: capability.Probed},
		}},
		"a berth's default": {&runtimeapi.StatusResponse{Info: berth(table)}, "", capability.VM, 2, nil},
		"containerd": {&runtimeapi.StatusResponse{Info: map[string]string{"config": "{}"}, RuntimeHandlers: features}, "runc", "", 2, map[capability.Name]capability.Known{
			capability.UserNamespaces:          {Answer: capability.No, Source: capability.Declared, Note: byStatus},
			capability.RecursiveReadOnlyMounts: {Answer: capability.Yes, Source: capability.Declared, Note: byStatus},
		}},
		"containerd's default":       {&runtimeapi.StatusResponse{RuntimeHandlers: features}, "", "", 2, map[capability.Name]capability.Known{capability.UserNamespaces: {Answer: capability.Yes, Source: capability.Declared, Note: byStatus}}},
		"a handler without features": {&runtimeapi.StatusResponse{RuntimeHandlers: features}, "old", "", 0, nil},
		"an unknown handler":         {&runtimeapi.StatusResponse{Info: berth(table), RuntimeHandlers: features}, "gone", "", 0, nil},
		"an older berth":             {&runtimeapi.StatusResponse{Info: berth(table), RuntimeHandlers: features}, "new", "", 0, nil},
		"an invalid table":           {&runtimeapi.StatusResponse{Info: berth(`{"isolation":"strong"}`), RuntimeHandlers: features}, "runc", "", 2, nil},
		"garbage":                    {&runtimeapi.StatusResponse{Info: map[string]string{infoKey: "["}}, "runc", "", 0, nil},
	} {
		got := capabilitiesOf(tc.status, tc.handler)
		if got.Isolation != tc.isolation || len(got.Capabilities) != tc.known {
			t.Errorf("%s: %+v", name, got)
		}
		for n, want := range tc.want {
			if got.Of(n) != want {
				t.Errorf("%s: %s is %+v", name, n, got.Of(n))
			}
		}
	}
}
