package conformance

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var identityChecks = []check{
	{name: "one image id over all calls", run: oneImageID},
	{name: "image_ref is a repository digest", run: imageRef},
	{name: "containers by id, by tag and by digest", run: createByEveryReference},
}

// oneImageID is the rule of the CRI since 0.36: what PullImage answers is what
// every other call calls the image. Image collection breaks without it.
func oneImageID(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	seen := map[string]string{
		"PullImage":                n.pull(t, n.Image.Busybox),
		"ImageStatus":              n.imageStatus(t, n.Image.Busybox).GetId(),
		"ContainerStatus.image_id": c.status(t).GetImageId(),
		"Container.image_id":       n.listContainers(t, &runtimeapi.ContainerFilter{Id: c.ID})[0].GetImageId(),
	}
	for where, id := range seen {
		testbed.Same(t, id, n.imageID, "%s says", where)
	}
}

func imageRef(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	want := repository(n.Image.Busybox) + "@" + n.Image.Digest
	if got := c.status(t).GetImageRef(); got != want && !strings.HasSuffix(got, "@"+n.Image.Digest) {
		t.Errorf("image_ref is %q, want %q", got, want)
	}
}

func createByEveryReference(t *testing.T, n *node) {
	p := n.pod(t)
	for _, ref := range []string{
		n.imageID, strings.TrimPrefix(n.imageID, "sha256:"), n.Image.Busybox, repository(n.Image.Busybox) + "@" + n.Image.Digest,
	} {
		c := p.create(t, forever(), func(c *runtimeapi.ContainerConfig) { c.Image = &runtimeapi.ImageSpec{Image: ref} })
		testbed.Same(t, c.status(t).GetImageId(), n.imageID, "created by %s: image_id is", ref)
	}
}
