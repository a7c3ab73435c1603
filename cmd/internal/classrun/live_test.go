package classrun

import (
	"testing"

	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestWhatFollowsFromWhatARuntimeSays(t *testing.T) {
	said := func(own bool) *adminv1.GetHandlerResponse {
		return &adminv1.GetHandlerResponse{
			Handler:  &adminv1.Handler{Name: "x", IsDefault: true, State: adminv1.State_STATE_NOT_READY, Reason: "it is gone"},
			Features: []*adminv1.Feature{{Name: "own-kernel", Supported: own}, {Name: "seccomp"}, {Name: "user-namespaces", Supported: true}},
		}
	}
	configured := said(true)
	configured.Settings = []*adminv1.Setting{{Key: "runtime_path", Value: `"/x"`}, {Key: "options.global_flags", Value: `["--network=host"]`}}
	another := said(true)
	another.Settings = []*adminv1.Setting{{Key: "options.global_flags", Value: `["--debug"]`}, {Key: "runtime_config_path", Value: `""`}}
	for _, c := range []struct {
		what      string
		of        *adminv1.GetHandlerResponse
		isolation capability.Isolation
		want      map[capability.Name]capability.Answer
	}{
		{"the host's kernel", said(false), capability.SharedKernel, map[capability.Name]capability.Answer{
			capability.HostPID: capability.Yes, capability.Seccomp: capability.No, capability.UserNamespaces: capability.Yes, capability.Exec: capability.Yes,
			capability.RecursiveReadOnlyMounts: capability.Unknown,
		}},
		// Whether it is gVisor's or that of a VM it does not say.
		{"a kernel of its own", said(true), "", map[capability.Name]capability.Answer{
			capability.HostPID: capability.No, capability.Seccomp: capability.Yes, capability.UserNamespaces: capability.No, capability.Exec: capability.Unknown,
		}},
		{"the host's network", configured, "", map[capability.Name]capability.Answer{capability.HostNetwork: capability.Unknown, capability.HostPID: capability.No}},
		{"no network of the host", another, "", map[capability.Name]capability.Answer{capability.HostNetwork: capability.No}},
		{"nobody was asked", &adminv1.GetHandlerResponse{Handler: said(true).GetHandler()}, "", map[capability.Name]capability.Answer{
			capability.HostPID: capability.Unknown, capability.Seccomp: capability.Unknown,
		}},
	} {
		t.Run(c.what, func(t *testing.T) {
			h := handlerOf(c.of)
			if h.Name != "x" || !h.Default || h.State != "not-ready" || h.Reason != "it is gone" || h.Isolation != c.isolation {
				t.Errorf("got %+v", h)
			}
			for name, want := range c.want {
				if got := h.Of(name).Answer; got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
			if err := h.Table.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}
