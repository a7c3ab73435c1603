package images

import (
	"bytes"
	"io"
	"strings"
	"testing"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestPullOfAnImage(t *testing.T) {
	pulls := []*adminv1.Pull{{Name: "docker.io/library/busybox:latest"}, {Name: "registry.example/team/app:1"}}
	for name, want := range map[string]int{
		"busybox": 0, "busybox:latest": 0, "library/busybox": 0, "docker.io/library/busybox:latest": 0, "docker.io/library/busybox": 0,
		"registry.example/team/app:1": 1, "box": -1, "busybox:1": -1, "": -1,
	} {
		got := pullOf(pulls, name)
		if want < 0 && got != nil || want >= 0 && got != pulls[want] {
			t.Errorf("%q is %v", name, got)
		}
	}
}

// Layers that were unpacked after the last sample must be shown as unpacked
// at the end of a pull.
func TestLayersThatCameLast(t *testing.T) {
	half := &adminv1.Pull{Layers: []*adminv1.PullLayer{
		{Digest: "sha256:first", Size: 1 << 20, Fetched: 1 << 20, Stage: "unpacked"},
		{Digest: "sha256:second", Size: 2 << 20, Fetched: 1 << 20, Stage: "fetching"},
	}}
	views := map[string]func(io.Writer) pullView{
		"lines": func(to io.Writer) pullView { return &pullLines{to: to, printed: map[string]bool{}} },
		"bars":  func(to io.Writer) pullView { return newPullBars(to, 100) },
	}
	for name, view := range views {
		t.Run(name, func(t *testing.T) {
			for pulled, want := range map[bool]string{true: "second unpacked", false: "first unpacked"} {
				var shown bytes.Buffer
				v := view(&shown)
				v.now(half)
				v.now(half)
				v.end(pulled)
				if !strings.Contains(shown.String(), want) || strings.Contains(shown.String(), "second unpacked") != pulled {
					t.Errorf("pulled is %v, shown %q", pulled, &shown)
				}
			}
		})
	}
	(&pullLines{}).end(true)
}
