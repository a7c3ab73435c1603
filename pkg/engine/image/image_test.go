package image

import (
	"strings"
	"testing"
)

func TestTag(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	several := &Image{RepoTags: []string{"docker.io/library/busybox:1", "docker.io/library/busybox:latest"}, RepoDigests: []string{"docker.io/library/busybox" + digest}}
	for asked, want := range map[string]string{
		"busybox": "docker.io/library/busybox:latest", "library/busybox:1": "docker.io/library/busybox:1",
		"busybox:2": "docker.io/library/busybox:1", "": "docker.io/library/busybox:1", "Not A Name": "docker.io/library/busybox:1",
	} {
		if got := several.Tag(asked); got != want {
			t.Errorf("%q has the tag %q, want %q", asked, got, want)
		}
		if got := several.Name(asked); got != want {
			t.Errorf("%q has the name %q, want %q", asked, got, want)
		}
	}
	for asked, want := range map[string]string{
		"busybox" + digest: "docker.io/library/busybox" + digest, "busybox:1" + digest: "docker.io/library/busybox" + digest,
		"other" + digest: "docker.io/library/busybox:1",
	} {
		if got := several.Name(asked); got != want {
			t.Errorf("%q has the name %q, want %q", asked, got, want)
		}
		if got := several.Tag(asked); got != several.RepoTags[0] {
			t.Errorf("%q has the tag %q", asked, got)
		}
	}
	if got := (&Image{}).Tag("busybox"); got != "" {
		t.Errorf("an image without a tag has %q", got)
	}
}
