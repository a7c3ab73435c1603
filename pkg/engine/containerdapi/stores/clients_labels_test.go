package stores

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

func TestClientLeaseLabels(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ asked, want string }{
		{"", "2026-01-02T00:00:00Z"},
		{"2026-01-01T01:00:00Z", "2026-01-01T01:00:00Z"},
		{"2030-01-01T00:00:00Z", "2026-01-02T00:00:00Z"},
		{"2026-01-01T02:00:00+02:00", "2026-01-01T00:00:00Z"},
		{"tomorrow", ""},
	} {
		asked := map[string]string{"mine": "yes", pull.PullLabel: "x", pull.BootLabel: "y"}
		if c.asked != "" {
			asked[disk.ExpireLabel] = c.asked
		}
		got, err := clientLeaseLabels(asked, now)
		if c.want == "" {
			test.Is(t, err, errdefs.IsInvalidArgument, "%q", c.asked)
			continue
		}
		if err != nil || got[disk.ExpireLabel] != c.want || got["mine"] != "yes" || got[pull.PullLabel]+got[pull.BootLabel] != "" || !disk.IsClientLease(leases.Lease{Labels: got}) {
			t.Errorf("%q: %v, %v", c.asked, got, err)
		}
		if asked[pull.PullLabel] == "" {
			t.Error("the client's own map was changed")
		}
	}
}

func TestLabelChanges(t *testing.T) {
	now := map[string]string{"a": "1", "b": "2", "berth.dev/platform": "x", "containerd.io/gc.ref.content.0": "d"}
	for name, c := range map[string]struct {
		asked map[string]string
		paths []string
		want  string
	}{
		"all labels":                    {map[string]string{"a": "3", "c": "4"}, nil, "map[a:3 b: c:4] [labels.a labels.b labels.c]"},
		"all labels, by path":           {map[string]string{"a": "1"}, []string{"labels"}, "map[b:] [labels.b]"},
		"no labels":                     {nil, nil, "map[a: b:] [labels.a labels.b]"},
		"one label":                     {map[string]string{"a": "3", "c": "4"}, []string{"labels.a"}, "map[a:3] [labels.a]"},
		"one label removed":             {nil, []string{"labels.a", "labels.a"}, "map[a:] [labels.a]"},
		"a missing label removed":       {nil, []string{"labels.z"}, "map[] []"},
		"one label unchanged":           {map[string]string{"a": "1"}, []string{"labels.a"}, "map[] []"},
		"berth's own label":             {map[string]string{"berth.dev/platform": "y"}, []string{"labels.berth.dev/platform"}, "map[] []"},
		"the collector's label":         {map[string]string{"containerd.io/gc.ref.content.0": "e"}, []string{"labels.containerd.io/gc.ref.content.0"}, "map[] []"},
		"a new label for the collector": {map[string]string{"containerd.io/gc.ref.content.1": "e"}, []string{"labels.containerd.io/gc.ref.content.1"}, "map[containerd.io/gc.ref.content.1:e] [labels.containerd.io/gc.ref.content.1]"},
	} {
		labels, paths, err := labelChanges(now, c.asked, c.paths)
		if got := fmt.Sprint(labels, " ", paths); err != nil || got != c.want {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
	long := map[string]string{"a": strings.Repeat("x", maxLabelBytes)}
	for name, c := range map[string]struct {
		asked map[string]string
		paths []string
	}{"another field": {nil, []string{"size"}}, "a label that is too long": {long, []string{"labels.a"}}} {
		if _, _, err := labelChanges(now, c.asked, c.paths); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
