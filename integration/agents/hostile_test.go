package agents

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/containerdapi"
)

// No client of containerd's API harms pods: after each attack, the image can be pulled, a new
// pod starts, and a command runs in the old one.
func TestHostileClients(t *testing.T) {
	b := newBed(t, "hostile", testbed.Options{})
	atRest := b.Rest(t)
	c := b.dial(t)
	ctx := namespaces.WithNamespace(t.Context(), containerdapi.Namespace)
	p := b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}})
	for _, attack := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"leases everything", func(t *testing.T) { leaseAll(t, ctx, b, c) }},
		{"writes content without a lease", func(t *testing.T) { writeUnleased(t, ctx, b, c) }},
		{"deletes what images are made of", func(t *testing.T) { deleteContent(t, ctx, b, c) }},
		{"lists ten thousand times", func(t *testing.T) { listALot(t, ctx, b, c) }},
		{"deletes images in use", func(t *testing.T) { deleteImages(t, ctx, b, c) }},
		{"writes invalid images", func(t *testing.T) { badImages(t, ctx, b, c) }},
		{"sends nonsense", func(t *testing.T) { nonsense(t, b) }},
	} {
		t.Run(attack.name, func(t *testing.T) {
			attack.run(t)
			p.Container.Exec(t, "ls", "/")
			b.Client.Pull(t, "", b.Image)
			b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}).Remove(t)
		})
	}
	b.NothingLeft(t, atRest)
}

// blobs returns the digests of all content.
func blobs(ctx context.Context, t *testing.T, c *client.Client) (all []digest.Digest) {
	t.Helper()
	err := c.ContentStore().Walk(ctx, func(i content.Info) error {
		all = append(all, i.Digest)
		return nil
	})
	testbed.Must(t, err)
	return all
}

// leaseAll leases all content. A lease ends within 25 hours, whatever the client demands, and
// the number of leases is limited.
func leaseAll(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	m := c.LeasesService()
	l, err := m.Create(ctx, leases.WithID("mine"), leases.WithLabels(map[string]string{"containerd.io/gc.expire": "2099-01-01T00:00:00Z"}))
	testbed.Must(t, err)
	for _, d := range blobs(ctx, t, c) {
		testbed.Check(t, m.AddResource(ctx, l, leases.Resource{ID: d.String(), Type: "content"}))
	}
	listed, err := m.List(ctx)
	if err != nil || len(listed) != 1 {
		t.Fatalf("there are the leases %v, want 1, %v", listed, err)
	}
	if end, err := time.Parse(time.RFC3339, listed[0].Labels["containerd.io/gc.expire"]); err != nil || end.After(time.Now().Add(25*time.Hour)) {
		t.Errorf("the lease ends at %s, %v, want within 25 hours", end, err)
	}
	var refused error
	for i := 0; i < 2000 && refused == nil; i++ {
		_, refused = m.Create(ctx, leases.WithRandomID())
	}
	if !errdefs.IsResourceExhausted(refused) {
		t.Errorf("create 2000 leases: %v, want resource exhausted", refused)
	}
	if listed, err = m.List(ctx); err != nil {
		t.Fatal(err)
	}
	for _, l := range listed {
		testbed.Check(t, m.Delete(ctx, l))
	}
}

// writeUnleased checks that content without a lease is collected, and that no pull waits for a
// client's writer.
func writeUnleased(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	data := bytes.Repeat([]byte("x"), 1<<20)
	desc := imagespec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
	testbed.Must(t, content.WriteBlob(ctx, c.ContentStore(), "mine", bytes.NewReader(data), desc))
	// These writers use the names that pulls use for their own writers, and stay open.
	for _, kind := range []string{"manifest", "layer", "config"} {
		for _, d := range blobs(ctx, t, c) {
			w, err := c.ContentStore().Writer(ctx, content.WithRef(kind+"-"+d.String()))
			testbed.Must(t, err)
			t.Cleanup(func() { _ = w.Close() })
		}
	}
	b.removeImage(t)
	b.Client.Pull(t, "", b.Image)
	b.removeImage(t) // which collects unreferenced content
	testbed.Eventually(t, patience, func() error {
		if _, err := c.ContentStore().Info(ctx, desc.Digest); !errdefs.IsNotFound(err) {
			return fmt.Errorf("content without a lease is still there: %w", err)
		}
		return nil
	})
	b.Client.Pull(t, "", b.Image)
	statuses, err := c.ContentStore().ListStatuses(ctx)
	if err != nil || len(statuses) == 0 {
		t.Errorf("the open writers are %v, %v", statuses, err)
	}
	for _, s := range statuses {
		testbed.Checkf(t, c.ContentStore().Abort(ctx, s.Ref), "abort %s", s.Ref)
	}
}

func deleteContent(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	all := blobs(ctx, t, c)
	if len(all) < 3 {
		t.Fatalf("there are %d blobs, want 3 or more", len(all))
	}
	for _, d := range all {
		if err := c.ContentStore().Delete(ctx, d); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), b.Registry.Host) {
			t.Errorf("delete %s: %v, want a refusal that names its image", d, err)
		}
	}
}

func listALot(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	var asking sync.WaitGroup
	failures := make(chan error, 40)
	for range 20 {
		asking.Go(func() {
			for range 250 {
				if _, err := c.ContainerService().List(ctx); err != nil {
					failures <- err
					return
				}
				if _, err := c.ImageService().List(ctx); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	// During the calls a pod starts and stops.
	b.Client.RunPod(t, testbed.PodSpec{Image: b.Image, Command: []string{"sleep", "1000"}}).Remove(t)
	asking.Wait()
	close(failures)
	for err := range failures {
		t.Error(err)
	}
}

func deleteImages(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	all, err := c.ImageService().List(ctx)
	if err != nil || len(all) == 0 {
		t.Fatalf("there are the images %v, %v, want one or more", all, err)
	}
	for _, img := range all {
		testbed.Check(t, c.ImageService().Delete(ctx, img.Name, images.SynchronousDelete()))
	}
	if left := b.images(t); len(left) > 0 {
		t.Errorf("the CRI still lists %v", left)
	}
}

// badImages checks that an incomplete or invalid image is refused, and changes no other image.
func badImages(t *testing.T, ctx context.Context, b *bed, c *client.Client) { //nolint:revive // t is the first parameter
	t.Helper()
	b.Client.Pull(t, "", b.Image)
	good, err := c.ImageService().Get(ctx, b.Image)
	testbed.Must(t, err)
	text := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":"sha256:` + strings.Repeat("0", 64) + `","size":2},"layers":[]}`)
	torn := imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromBytes(text), Size: int64(len(text))}
	testbed.Must(t, content.WriteBlob(ctx, c.ContentStore(), "torn", bytes.NewReader(text), torn))
	for name, img := range map[string]images.Image{
		"no name":         {Target: good.Target},
		"not a name":      {Name: "A B", Target: good.Target},
		"a short name":    {Name: "short", Target: good.Target},
		"no target":       {Name: "registry.test/x:1"},
		"missing content": {Name: "registry.test/x:1", Target: imagespec.Descriptor{MediaType: imagespec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 1}},
		"a torn manifest": {Name: "registry.test/x:1", Target: torn},
		"no media type":   {Name: "registry.test/x:1", Target: imagespec.Descriptor{Digest: torn.Digest, Size: torn.Size}},
		"expires at once": {Name: "registry.test/x:1", Target: good.Target, Labels: map[string]string{"containerd.io/gc.expire": "2000-01-01T00:00:00Z"}},
		"already exists":  {Name: b.Image, Target: good.Target},
	} {
		if _, err := c.ImageService().Create(ctx, img); err == nil {
			t.Errorf("image accepted: %s", name)
		}
	}
	if _, err := c.ImageService().Update(ctx, images.Image{Name: b.Image, Target: torn}, "target"); err == nil {
		t.Error("an image was changed to an incomplete manifest")
	}
	if now, err := c.ImageService().Get(ctx, b.Image); err != nil || now.Target.Digest != good.Target.Digest {
		t.Errorf("the image has changed to %v, %v", now.Target, err)
	}
	if tags := b.tags(t); !slices.Equal(tags, []string{b.Image}) {
		t.Errorf("the CRI lists the tags %v", tags)
	}
}

// nonsense opens connections that send no gRPC, and connections that send nothing.
func nonsense(t *testing.T, b *bed) {
	t.Helper()
	for i := range 200 {
		conn, err := net.Dial("unix", b.Agents)
		testbed.Must(t, err)
		if i%2 == 0 {
			if _, err := conn.Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 100)); err != nil && !errors.Is(err, net.ErrClosed) && !strings.Contains(err.Error(), "pipe") {
				t.Error(err)
			}
		}
		t.Cleanup(func() { conn.Close() })
	}
	b.ctr(t, "-n", "k8s.io", "images", "ls") //nolint:errcheck // the next call checks that berth answers
	b.must(t, "images", "ls")
}
