package image

import "testing"

func TestTag(t *testing.T) {
	several := &Image{RepoTags: []string{"docker.io/library/busybox:1", "docker.io/library/busybox:latest"}, RepoDigests: []string{"docker.io/library/busybox@sha256:aa"}}
	for asked, want := range map[string]string{
		"busybox": "docker.io/library/busybox:latest", "library/busybox:1": "docker.io/library/busybox:1",
		"busybox:2": "docker.io/library/busybox:1", "": "docker.io/library/busybox:1", "Not A Name": "docker.io/library/busybox:1",
	} {
		if got := several.Tag(asked); got != want {
			t.Errorf("%q has the tag %q, want %q", asked, got, want)
		}
	}
	if got := (&Image{}).Tag("busybox"); got != "" {
		t.Errorf("an image without a tag has %q", got)
	}
}
