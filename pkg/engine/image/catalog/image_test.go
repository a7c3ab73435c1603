package catalog

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestTag(t *testing.T) {
	digest := "@sha256:" + strings.Repeat("a", 64)
	several := &Image{RepoTags: []string{"docker.io/library/busybox:1", "docker.io/library/busybox:latest"}, RepoDigests: []string{"docker.io/library/busybox" + digest}}
	for asked, want := range map[string]string{
		"busybox": "docker.io/library/busybox:latest", "library/busybox:1": "docker.io/library/busybox:1",
		"busybox:2": "docker.io/library/busybox:1", "": "docker.io/library/busybox:1", "Not A Name": "docker.io/library/busybox:1",
	} {
		test.Equal(t, fmt.Sprintf("tag for %q", asked), several.Tag(asked), want)
		test.Equal(t, fmt.Sprintf("name for %q", asked), several.Name(asked), want)
	}
	for asked, want := range map[string]string{
		"busybox" + digest: "docker.io/library/busybox" + digest, "busybox:1" + digest: "docker.io/library/busybox" + digest,
		"other" + digest: "docker.io/library/busybox:1",
	} {
		test.Equal(t, fmt.Sprintf("name for %q", asked), several.Name(asked), want)
		test.Equal(t, fmt.Sprintf("tag for %q", asked), several.Tag(asked), several.RepoTags[0])
	}
	test.Equal(t, "tag of an image without tags", (&Image{}).Tag("busybox"), "")
}
