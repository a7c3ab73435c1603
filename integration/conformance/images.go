package conformance

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

var imageChecks = []check{
	{name: "pull by tag", run: pullByTag},
	{name: "pull by digest", run: pullByDigest},
	{name: "pull again gives the same", run: pullAgain},
	{name: "status by every kind of reference", run: statusByEveryReference},
	{name: "status of a missing image", run: statusOfMissing},
	{name: "status verbose has info", run: imageVerbose},
	{name: "two tags of one image are one image", run: tagsOfOneImage},
	{name: "list and its filter", run: listImages},
	{name: "the image's user", run: userOfImage},
	{name: "remove by one tag drops all names", run: removeDropsAllNames},
	{name: "remove by id and by digest", run: removeByIDAndDigest},
	{name: "remove of a missing image", run: removeMissing},
	{name: "concurrent pulls of one image", run: concurrentPulls},
	{name: "concurrent removals of one image", run: concurrentRemovals},
	{name: "an image in use can be removed and the container lives", run: removeInUse},
	{name: "a deadline of one millisecond", run: pullDeadline},
	{name: "an absent tag", run: pullAbsent},
	{name: "a registry that is not there", run: pullUnreachable},
	{name: "malformed references", run: malformedReferences},
	{name: "file system information", run: fsInfo},
}

func (n *node) removeImage(t *testing.T, ref string) {
	t.Helper()
	_, err := n.Images.RemoveImage(call(t), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	must(t, err, "RemoveImage "+ref)
}

// restoreBusybox pulls Busybox again when the check ends, because other checks need it.
func (n *node) restoreBusybox(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { n.pull(t, n.Image.Busybox) })
}

func repository(ref string) string { return ref[:strings.LastIndex(ref, ":")] }

func pullByTag(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Busybox)
	img := n.imageStatus(t, n.Image.Busybox)
	testbed.Same(t, img.GetId(), id, "PullImage answered %q, Image.id is", id)
	if !slices.Contains(img.GetRepoTags(), n.Image.Busybox) {
		t.Errorf("repo_tags are %v", img.GetRepoTags())
	}
	if want := repository(n.Image.Busybox) + "@" + n.Image.Digest; !slices.Contains(img.GetRepoDigests(), want) {
		t.Errorf("repo_digests are %v, want %s", img.GetRepoDigests(), want)
	}
	if img.GetSize() == 0 {
		t.Error("size is 0: the kubelet's client refuses the image")
	}
}

func pullByDigest(t *testing.T, n *node) {
	n.removeImage(t, n.Image.Busybox)
	n.restoreBusybox(t)
	ref := repository(n.Image.Busybox) + "@" + n.Image.Digest
	id := n.pull(t, ref)
	img := n.imageStatus(t, ref)
	if img.GetId() != id || id != n.imageID {
		t.Errorf("pulled %q by digest, status says %q, by tag it was %q", id, img.GetId(), n.imageID)
	}
	if len(img.GetRepoTags()) != 0 || !slices.Equal(img.GetRepoDigests(), []string{ref}) {
		t.Errorf("repo_tags %v, repo_digests %v", img.GetRepoTags(), img.GetRepoDigests())
	}
	n.pod(t).output(t, sh("true"))
}

func pullAgain(t *testing.T, n *node) {
	first := n.pull(t, n.Image.Busybox)
	testbed.Same(t, n.pull(t, n.Image.Busybox), first, "%q, then", first)
}

func statusByEveryReference(t *testing.T, n *node) {
	id := n.pull(t, n.Image.Busybox)
	hex := strings.TrimPrefix(id, "sha256:")
	for _, ref := range []string{
		n.Image.Busybox, id, hex, "sha256:" + hex,
		repository(n.Image.Busybox) + "@" + n.Image.Digest,
	} {
		if img := n.imageStatus(t, ref); img.GetId() != id {
			t.Errorf("status of %s is %v", ref, img)
		}
	}
	if n.Berth {
		if img := n.imageStatus(t, n.Image.Busybox+"@"+n.Image.Digest); img.GetId() != id {
			t.Errorf("status by tag and digest is %v", img)
		}
		if img := n.imageStatus(t, hex[:12]); img.GetId() != id {
			t.Errorf("status by a unique prefix is %v", img)
		}
	}
}

func statusOfMissing(t *testing.T, n *node) {
	for _, ref := range []string{n.Image.Absent, "sha256:" + strings.Repeat("2", 64)} {
		if img := n.imageStatus(t, ref); img != nil {
			t.Errorf("%s: %v", ref, img)
		}
	}
}

func imageVerbose(t *testing.T, n *node) {
	for _, verbose := range []bool{false, true} {
		r, err := n.Images.ImageStatus(call(t), &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: n.imageID}, Verbose: verbose})
		must(t, err, "ImageStatus")
		if got := len(r.GetInfo()) > 0; got != verbose {
			t.Errorf("verbose %v: info is %v", verbose, r.GetInfo())
		}
	}
}

func tagsOfOneImage(t *testing.T, n *node) {
	a, b := n.pull(t, n.Image.Busybox), n.pull(t, n.Image.BusyboxAlias)
	testbed.MustBe(t, a, b, "two tags of one image have ids")
	if tags := n.imageStatus(t, a).GetRepoTags(); !slices.Contains(tags, n.Image.Busybox) || !slices.Contains(tags, n.Image.BusyboxAlias) {
		t.Errorf("repo_tags are %v", tags)
	}
	seen := 0
	for _, img := range n.listImages(t, "") {
		if img.GetId() == a {
			seen++
		}
	}
	testbed.Same(t, seen, 1, "times: the image is listed")
}

func (n *node) listImages(t *testing.T, filter string) []*runtimeapi.Image {
	t.Helper()
	req := &runtimeapi.ListImagesRequest{}
	if filter != "" {
		req.Filter = &runtimeapi.ImageFilter{Image: &runtimeapi.ImageSpec{Image: filter}}
	}
	r, err := n.Images.ListImages(call(t), req)
	must(t, err, "ListImages")
	return r.GetImages()
}

func listImages(t *testing.T, n *node) {
	other := n.pull(t, n.Image.Other)
	ids := map[string]bool{}
	for _, img := range n.listImages(t, "") {
		if img.GetId() == "" || img.GetSize() == 0 {
			t.Errorf("listed without id or size: %v", img)
		}
		if ids[img.GetId()] {
			t.Errorf("%s is listed twice", img.GetId())
		}
		ids[img.GetId()] = true
	}
	if !ids[other] || !ids[n.imageID] {
		t.Errorf("%v lacks %s or %s", ids, other, n.imageID)
	}
	if !n.Berth {
		return // containerd ignores the filter
	}
	if got := n.listImages(t, n.Image.Other); len(got) != 1 || got[0].GetId() != other {
		t.Errorf("filtered by %s: %v", n.Image.Other, got)
	}
	testbed.Empty(t, n.listImages(t, n.Image.Absent), "filtered by an absent image")
}

func userOfImage(t *testing.T, n *node) {
	n.pull(t, n.Image.User)
	if img := n.imageStatus(t, n.Image.User); img.GetUsername() != "app" || img.GetUid() != nil {
		t.Errorf("username %q, uid %v, want app and none", img.GetUsername(), img.GetUid())
	}
	if img := n.imageStatus(t, n.Image.Busybox); img.GetUsername() != "" || img.GetUid().GetValue() != 0 {
		t.Errorf("username %q, uid %v of an image without USER", img.GetUsername(), img.GetUid())
	}
}

func removeDropsAllNames(t *testing.T, n *node) {
	n.restoreBusybox(t)
	n.pull(t, n.Image.Busybox)
	n.pull(t, n.Image.BusyboxAlias)
	n.removeImage(t, n.Image.BusyboxAlias)
	for _, ref := range []string{n.Image.Busybox, n.Image.BusyboxAlias, n.imageID, repository(n.Image.Busybox) + "@" + n.Image.Digest} {
		if img := n.imageStatus(t, ref); img != nil {
			t.Errorf("%s is still there: %v", ref, img)
		}
	}
	for _, img := range n.listImages(t, "") {
		if img.GetId() == n.imageID {
			t.Errorf("still listed: %v", img)
		}
	}
}

func removeByIDAndDigest(t *testing.T, n *node) {
	n.restoreBusybox(t)
	for _, ref := range []string{n.imageID, repository(n.Image.Busybox) + "@" + n.Image.Digest} {
		n.pull(t, n.Image.Busybox)
		n.removeImage(t, ref)
		if img := n.imageStatus(t, n.Image.Busybox); img != nil {
			t.Errorf("removed by %s, still there: %v", ref, img)
		}
	}
}

func removeMissing(t *testing.T, n *node) {
	for _, ref := range []string{n.Image.Absent, "sha256:" + strings.Repeat("3", 64)} {
		n.removeImage(t, ref)
	}
}

// inParallel runs f as often as times, all at once. Every error fails the check.
func inParallel(t *testing.T, times int, f func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range times {
		wg.Go(func() {
			testbed.Check(t, f())
		})
	}
	wg.Wait()
}

func concurrentPulls(t *testing.T, n *node) {
	n.removeImage(t, n.Image.Other)
	ids := make(chan string, 6)
	inParallel(t, cap(ids), func() error {
		r, err := n.Images.PullImage(call(t), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.Image.Other}})
		ids <- r.GetImageRef()
		return err
	})
	first := <-ids
	for range cap(ids) - 1 {
		testbed.Same(t, <-ids, first, "one pull answered %q, another", first)
	}
}

func concurrentRemovals(t *testing.T, n *node) {
	n.pull(t, n.Image.Other)
	inParallel(t, 6, func() error {
		_, err := n.Images.RemoveImage(call(t), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: n.Image.Other}})
		return err
	})
	if img := n.imageStatus(t, n.Image.Other); img != nil {
		t.Errorf("still there: %v", img)
	}
}

func removeInUse(t *testing.T, n *node) {
	n.restoreBusybox(t)
	p := n.pod(t)
	c := p.start(t, forever())
	n.removeImage(t, n.imageID)
	if img := n.imageStatus(t, n.imageID); img != nil {
		t.Errorf("still there: %v", img)
	}
	if got := c.line(t, "cat", "/etc/hostname"); got == "" {
		t.Error("the container's files are gone")
	}
	st := c.status(t)
	if st.GetImageId() != n.imageID || st.GetImageRef() == "" || st.GetImage().GetImage() == "" {
		t.Errorf("status lost its image: %v", st)
	}
	c.stop(t, time.Second)
	c.remove(t)
}

func pullDeadline(t *testing.T, n *node) {
	n.removeImage(t, n.Image.Other)
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	_, err := n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: n.Image.Other}})
	mustFail(t, err, "PullImage with a deadline of 1ms", codes.DeadlineExceeded)
	n.pull(t, n.Image.Other)
	if img := n.imageStatus(t, n.Image.Other); img.GetSize() == 0 {
		t.Errorf("after a pull that was cut off: %v", img)
	}
}

func (n *node) refusedPull(t *testing.T, ref string, want ...codes.Code) error {
	t.Helper()
	_, err := n.Images.PullImage(call(t), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	n.rejects(t, err, "PullImage "+ref, want...)
	return err
}

func pullAbsent(t *testing.T, n *node) {
	_ = n.refusedPull(t, n.Image.Absent, codes.NotFound) // the registry chooses the text
}

// pullUnreachable pulls from a loopback port without a listener. The kubelet looks for the prefix
// of the message, which it only sees with code Unknown.
func pullUnreachable(t *testing.T, n *node) {
	err := n.refusedPull(t, "127.0.0.1:1/nobody/home:1", codes.Unknown, codes.Unavailable)
	if n.Berth && !strings.Contains(err.Error(), "desc = RegistryUnavailable") {
		t.Errorf("the message does not begin with RegistryUnavailable: %v", err)
	}
}

func malformedReferences(t *testing.T, n *node) {
	for _, ref := range []string{"", "registry.test/UPPER:1", "host/name:tag:tag", "name@sha256:short", strings.Repeat("a", 300) + ":1"} {
		if err := n.refusedPull(t, ref, codes.InvalidArgument); len(err.Error()) > 1024 {
			t.Errorf("the message about %q has more than 1024 bytes", ref)
		}
	}
	_, err := n.Images.PullImage(call(t), &runtimeapi.PullImageRequest{})
	n.rejects(t, err, "PullImage without an image", codes.InvalidArgument)
}

func fsInfo(t *testing.T, n *node) {
	r, err := n.Images.ImageFsInfo(call(t), &runtimeapi.ImageFsInfoRequest{})
	must(t, err, "ImageFsInfo")
	if len(r.GetImageFilesystems()) == 0 {
		t.Fatal("no image file system: the kubelet does not start")
	}
	for _, fs := range r.GetImageFilesystems() {
		if fs.GetTimestamp() == 0 || fs.GetUsedBytes() == nil || fs.GetInodesUsed() == nil {
			t.Errorf("incomplete: %v", fs)
		}
		if fi, err := os.Stat(fs.GetFsId().GetMountpoint()); err != nil || !fi.IsDir() {
			t.Errorf("mount point %q: %v", fs.GetFsId().GetMountpoint(), err)
		}
	}
}

var identityChecks = []check{
	{name: "one image id over all calls", run: oneImageID},
	{name: "image_ref is a repository digest", run: imageRef},
	{name: "containers by id, by tag and by digest", run: createByEveryReference},
}

// oneImageID is the rule of the CRI since 0.36: PullImage returns the same image id as every other
// call. Without it, the kubelet's image garbage collection fails.
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
