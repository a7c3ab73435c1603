package image

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/containerdapi/stores"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// topics records the topics of published events.
type topics struct {
	mu   sync.Mutex
	told []string
}

func (p *topics) Publish(_ context.Context, topic string, _ events.Event) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, topic)
	return nil
}

// taken returns the topics since the last call, with repetitions merged.
func (p *topics) taken() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	told := p.told
	p.told = nil
	return slices.Compact(told)
}

// writeBlob writes content under a lease, as a client.
func writeBlob(ctx context.Context, t *testing.T, c content.Store, lease, text string) digest.Digest {
	t.Helper()
	desc := imagespec.Descriptor{Digest: digest.FromString(text), Size: int64(len(text))}
	test.Must(t, content.WriteBlob(leases.WithLease(ctx, lease), c, text, strings.NewReader(text), desc))
	return desc.Digest
}

func TestEventsOfImages(t *testing.T) {
	told := &topics{}
	_, s, _ := pulled(t, Config{Events: told}, layered(t, v1.Config{}))
	got := told.taken()
	if !slices.Contains(got, "/content/create") || !slices.Contains(got, "/images/create") || got[len(got)-1] != "/images/create" {
		t.Errorf("a pull published %v", got)
	}
	pullImage(t, s, app)
	if got := told.taken(); len(got) > 0 {
		t.Errorf("a pull that changes nothing published %v", got)
	}
	test.Must(t, s.Remove(t.Context(), app))
	if got := told.taken(); len(got) == 0 || got[0] != "/images/delete" {
		t.Errorf("a removal published %v", got)
	}
}

// Content that a client leased stays after a restart. It is removed once its lease is old and the
// disk is full. Clients do not see the leases of pulls.
func TestLeasesOfClients(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	l := test.Value(s.Clients().Leases().Create(ctx, leases.WithID("mine")))(t)
	written := writeBlob(ctx, t, s.Clients().Content(), l.ID, "precompiled")
	_, lease, err := s.files.Lease(ctx, nil)
	test.Must(t, err)
	if listed, err := s.Clients().Leases().List(ctx); err != nil || len(listed) != 1 {
		t.Errorf("a client lists the leases %v, %v; want its own only", listed, err)
	}
	for what, err := range map[string]error{
		"delete": s.Clients().Leases().Delete(ctx, lease),
		"use":    s.Clients().Leases().AddResource(ctx, lease, leases.Resource{ID: written.String(), Type: "content"}),
	} {
		test.Is(t, err, errdefs.IsNotFound, "%s the lease of a pull", what)
	}
	s = reopen(t, s)
	test.Must(t, s.Clients().Collect(ctx))
	test.Checkf(t, test.Err(s.Clients().Content().Info(ctx, written)), "leased content after a restart")
	s.files.DropClientLeases(ctx, time.Now().Add(-time.Hour))
	if listed, err := s.Clients().Leases().List(ctx); err != nil || len(listed) != 1 {
		t.Errorf("a new lease was dropped: %v, %v", listed, err)
	}
	s.files.DropClientLeases(ctx, time.Now().Add(time.Second))
	test.Must(t, s.Clients().Collect(ctx))
	test.Is(t, test.Err(s.Clients().Content().Info(ctx, written)), errdefs.IsNotFound, "content of a dropped lease")
}

// An image that a client has given another name can be used and removed as any other, also after a
// restart and with discarded layers.
func TestImagesOfClients(t *testing.T) {
	for name, discard := range map[string]bool{"layers are kept": false, "layers are discarded": true} {
		t.Run(name, func(t *testing.T) {
			_, s := serve(t, Config{DiscardLayers: discard}, layered(t, v1.Config{}))
			ctx := disk.InNamespace(t.Context())
			img := pullImage(t, s, app)
			test.Must(t, s.Clients().Collect(ctx))
			records := s.Clients().Images()
			first := test.Value(records.Get(ctx, app))(t)
			made := test.Value(records.Create(ctx, images.Image{Name: "registry.test/other:2", Target: first.Target, Labels: map[string]string{"mine": "yes"}}))(t)
			if made.Target.Digest != first.Target.Digest || made.Labels["mine"] != "yes" {
				t.Errorf("the created record is %+v", made)
			}
			test.Is(t, test.Err(records.Create(ctx, made)), errdefs.IsAlreadyExists, "create the record again")
			test.Must(t, records.Delete(ctx, app, images.SynchronousDelete()))
			s = reopen(t, s)
			test.Must(t, s.Retain(ctx, nil))
			again := test.Value(s.Get("registry.test/other:2"))(t)
			if again.ID != img.ID || slices.Contains(again.RepoTags, app) {
				t.Errorf("after a restart the image is %+v", again)
			}
			test.Checkf(t, test.Err(s.PrepareRootfs(ctx, "c", again, "", nil)), "prepare a container of the image")
			test.Must(t, s.RemoveRootfs(ctx, "c", ""))
			for _, n := range append(again.RepoTags, again.RepoDigests...) {
				test.Must(t, s.Clients().Images().Delete(ctx, n, images.SynchronousDelete()))
			}
			wantStored(t, s, 0, 0)
		})
	}
}

// ending is called when an image is removed. The test cancels its client's context then.
type ending func()

func (e ending) Publish(_ context.Context, topic string, _ events.Event) error {
	if topic == "/images/delete" {
		e()
	}
	return nil
}

// A client that disconnects before the space is free has removed the name nevertheless.
func TestRemovalWithoutWaiting(t *testing.T) {
	ctx, cancel := context.WithCancel(disk.InNamespace(t.Context()))
	_, s, _ := pulled(t, Config{Events: ending(cancel)}, layered(t, v1.Config{}))
	test.Check(t, s.Clients().Images().Delete(ctx, app, images.SynchronousDelete()))
	test.Fails(t, ctx.Err(), "the client's context was not cancelled by the removal")
	test.Is(t, test.Err(s.Get(app)), errdefs.IsNotFound, "get a removed name")
}

// Labels of a client stay when the kubelet pulls the image again.
func TestLabelsOfClientsStay(t *testing.T) {
	reg, s := serve(t, Config{}, layered(t, v1.Config{}))
	ctx := disk.InNamespace(t.Context())
	pullImage(t, s, app)
	records := s.Clients().Images()
	test.Must(t, test.Err(records.Update(ctx, images.Image{Name: app, Labels: map[string]string{"mine": "yes"}}, "labels.mine")))
	reg.push(t, "app:1", build(t, v1.Config{Env: []string{"A=b"}}, layer(t, file{name: "new", body: "new"})))
	pullImage(t, s, app)
	rec := test.Value(records.Get(ctx, app))(t)
	if rec.Labels["mine"] != "yes" || rec.Labels["io.cri-containerd.image"] != "managed" {
		t.Errorf("after the second pull the labels are %v", rec.Labels)
	}
	test.Is(t, test.Err(records.Update(ctx, rec, "name")), errdefs.IsInvalidArgument, "update of a record's name")
}

// Pulled content has containerd's label of its source repository.
func TestSourceOfContent(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "team/app:1", layered(t, v1.Config{}))
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	pullImage(t, s, "registry.test/team/app:1")
	n := 0
	test.Must(t, s.Clients().Content().Walk(disk.InNamespace(t.Context()), func(i content.Info) error {
		n++
		test.Equal(t, fmt.Sprintf("source of %s", i.Digest), i.Labels["containerd.io/distribution.source.registry.test"], "team/app")
		return nil
	}))
	if n < 3 {
		t.Errorf("there are %d blobs, want at least 3", n)
	}
}

// Namespaces other than the store's have no images, content or snapshots.
func TestOtherNamespacesAreEmpty(t *testing.T) {
	_, s, img := pulled(t, Config{}, layered(t, v1.Config{}))
	ctx := namespaces.WithNamespace(t.Context(), "other")
	if all, err := s.Clients().Images().List(ctx); err != nil || len(all) > 0 {
		t.Errorf("another namespace has the images %v, %v", all, err)
	}
	_, info := s.Clients().Content().Info(ctx, digest.Digest(img.ID))
	_, read := s.Clients().Content().ReaderAt(ctx, imagespec.Descriptor{Digest: digest.Digest(img.ID)})
	_, stat := s.Clients().Snapshotters()[disk.Overlayfs].Stat(ctx, img.ChainID.String())
	for _, err := range []error{info, read, stat} {
		test.Is(t, err, errdefs.IsNotFound, "content or snapshot in another namespace")
	}
}

// A pull succeeds and keeps its content even if clients delete content all the time.
func TestDeletedContentOfPulls(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	test.Must(t, s.Retain(disk.InNamespace(t.Context()), nil))
	ctx, cancel := context.WithCancel(disk.InNamespace(t.Context()))
	defer cancel()
	img := pullImage(t, s, app)
	var known []digest.Digest
	test.Must(t, s.Clients().Content().Walk(ctx, func(i content.Info) error { known = append(known, i.Digest); return nil }))
	var deleting sync.WaitGroup
	for range 4 {
		deleting.Go(func() {
			for ctx.Err() == nil {
				for _, d := range known {
					if err := s.Clients().Content().Delete(ctx, d); err == nil {
						continue // the image was removed at that time
					} else if !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) && ctx.Err() == nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	for i := range 10 {
		test.Mustf(t, test.Err(s.Pull(ctx, pull.Request{Ref: app})), "pull %d", i)
		for _, d := range known {
			test.Mustf(t, test.Err(s.files.Content.Info(ctx, d)), "content after pull %d", i)
		}
		test.Must(t, s.Remove(ctx, img.ID))
	}
	cancel()
	deleting.Wait()
}

// An image that is removed while a client gives it another name is complete or removed entirely.
func TestNamedWhileItIsRemoved(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	ctx := disk.InNamespace(t.Context())
	test.Must(t, s.Retain(ctx, nil))
	for i := range 10 {
		img := pullImage(t, s, app)
		rec := test.Value(s.Clients().Images().Get(ctx, app))(t)
		var both sync.WaitGroup
		both.Go(func() {
			_, err := s.Clients().Images().Create(ctx, images.Image{Name: "registry.test/other:1", Target: rec.Target})
			if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
				t.Error(err)
			}
		})
		both.Go(func() { test.Check(t, s.Remove(ctx, img.ID)) })
		both.Wait()
		test.Must(t, s.Clients().Collect(ctx))
		for _, left := range s.List() {
			test.Mustf(t, test.Err(s.PrepareRootfs(ctx, "c", left, "", nil)), "round %d: image %v is listed, but a container of it cannot be prepared", i, left.RepoTags)
			test.Must(t, s.RemoveRootfs(ctx, "c", ""))
			test.Must(t, s.Remove(ctx, left.ID))
		}
	}
}

// A client's record of a stored image must have the right size and media type, because the image
// is found by its record after a restart.
func TestWrongDescriptionOfAnImage(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	ctx := disk.InNamespace(t.Context())
	pullImage(t, s, app)
	rec := test.Value(s.Clients().Images().Get(ctx, app))(t)
	for name, change := range map[string]func(*imagespec.Descriptor){
		"size":       func(d *imagespec.Descriptor) { d.Size += 7 },
		"media type": func(d *imagespec.Descriptor) { d.MediaType = imagespec.MediaTypeImageIndex },
	} {
		wrong := images.Image{Name: "registry.test/other:1", Target: rec.Target}
		change(&wrong.Target)
		test.Is(t, test.Err(s.Clients().Images().Create(ctx, wrong)), errdefs.IsInvalidArgument, "create a record with another %s", name)
	}
}

// Clients cannot create content that is never collected, or labels that are too large to be listed.
func TestLimitsOfClients(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	data := []byte("x")
	desc := imagespec.Descriptor{Digest: digest.FromBytes(data), Size: 1}
	write := func(labels map[string]string) error {
		return content.WriteBlob(ctx, s.Clients().Content(), "x", bytes.NewReader(data), desc, content.WithLabels(labels))
	}
	large := map[string]string{"x": strings.Repeat("x", 32<<10)}
	_, record := s.Clients().Images().Create(ctx, images.Image{Name: "registry.test/app:1", Target: desc, Labels: large})
	_, lease := s.Clients().Leases().Create(ctx, leases.WithRandomID(), leases.WithLabels(large))
	for name, err := range map[string]error{
		"content with a root label":     write(map[string]string{"containerd.io/gc.root": "x"}),
		"content with a back reference": write(map[string]string{"containerd.io/gc.bref.image.x": app}),
		"content with large labels":     write(large),
		"lease with large labels":       lease,
		"image with large labels":       record,
	} {
		test.Is(t, err, errdefs.IsInvalidArgument, "%s", name)
	}
	test.Says(t, record, "labels with")
	test.Must(t, s.Clients().Content().Abort(ctx, "x"))
	l := test.Value(s.Clients().Leases().Create(ctx, leases.WithRandomID()))(t)
	writeBlob(ctx, t, s.Clients().Content(), l.ID, "x")
	test.Must(t, s.Clients().Leases().Delete(ctx, l))
	test.Eventually(t, "content of a deleted lease is removed", func() bool {
		_, err := s.Clients().Content().Info(ctx, desc.Digest)
		return errdefs.IsNotFound(err)
	})
	// Unfinished writes are dropped when the disk is full.
	w := test.Value(s.Clients().Content().Writer(ctx, content.WithRef("left")))(t)
	test.Must(t, w.Close())
	s.files.DropClientWrites(ctx)
	if left, err := s.Clients().Content().ListStatuses(ctx); err != nil || len(left) > 0 {
		t.Errorf("unfinished writes are left: %v, %v", left, err)
	}
}

// Clients can write and label content while garbage is collected. The store does not deadlock.
func TestLabelsBesideWrites(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	c := s.Clients().Content()
	l := test.Value(s.Clients().Leases().Create(ctx, leases.WithID("mine")))(t)
	kept := writeBlob(ctx, t, c, l.ID, "kept")
	written := make(chan struct{})
	var writers, beside sync.WaitGroup
	for i := range 2 {
		writers.Go(func() {
			for j := range 200 {
				b := []byte(fmt.Sprint("blob", i, j))
				test.Check(t, content.WriteBlob(ctx, c, fmt.Sprint(i), bytes.NewReader(b), imagespec.Descriptor{Digest: digest.FromBytes(b), Size: int64(len(b))}))
			}
		})
	}
	until := func(do func(n int)) {
		beside.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-written:
					return
				default:
					do(n)
				}
			}
		})
	}
	until(func(n int) {
		test.Check(t, test.Err(c.Update(ctx, content.Info{Digest: kept, Labels: map[string]string{"x": fmt.Sprint(n)}}, "labels.x")))
	})
	until(func(int) { <-s.views.Work.Collector.Request() })
	// If the store deadlocks, the timeout of the test run ends this wait.
	writers.Wait()
	close(written)
	beside.Wait()
}

// A client cannot delete content that an image refers to by a label. Both are removed together.
func TestDeletedContentThatIsReferredTo(t *testing.T) {
	_, s := serve(t, Config{}, layered(t, v1.Config{}))
	ctx := disk.InNamespace(t.Context())
	img := pullImage(t, s, app)
	c := s.Clients().Content()
	l := test.Value(s.Clients().Leases().Create(ctx, leases.WithID("mine")))(t)
	written := writeBlob(ctx, t, c, l.ID, "precompiled")
	label := map[string]string{"containerd.io/gc.ref.content.precompiled": written.String()}
	test.Must(t, test.Err(c.Update(ctx, content.Info{Digest: img.Manifest.Digest, Labels: label}, "labels.containerd.io/gc.ref.content.precompiled")))
	test.Refused(t, c.Delete(ctx, written), errdefs.IsFailedPrecondition, "belongs to image registry.test/app")
	test.Must(t, s.Remove(ctx, img.ID))
	<-s.views.Work.Collector.Request()
	test.Is(t, test.Err(c.Info(ctx, written)), errdefs.IsNotFound, "get the content after the image was removed")
}

// slowInfo calls its function meanwhile between the read and the write of a client's update.
type slowInfo struct {
	content.Store
	meanwhile func()
}

func (s slowInfo) Info(ctx context.Context, d digest.Digest) (content.Info, error) {
	info, err := s.Store.Info(ctx, d)
	s.meanwhile()
	return info, err
}

// A client's reference does not replace a reference that a pull writes at the same time.
func TestReferencesOfClients(t *testing.T) {
	s := openStore(t, Config{})
	ctx := disk.InNamespace(t.Context())
	c := s.Clients().Content()
	l := test.Value(s.Clients().Leases().Create(ctx, leases.WithID("mine")))(t)
	write := func(text string) digest.Digest { return writeBlob(ctx, t, c, l.ID, text) }
	manifest, layer, own := write("manifest"), write("layer"), write("own")
	const name = "containerd.io/gc.ref.content.l.0"
	slow := slowInfo{s.files.Content, func() {
		test.Must(t, test.Err(s.files.Content.Update(ctx, content.Info{Digest: manifest, Labels: map[string]string{name: layer.String()}}, "labels."+name)))
	}}
	beside := stores.New(stores.Parts{Files: &disk.Files{Content: slow}}).Content()
	for _, paths := range [][]string{{"labels." + name}, {"labels"}, nil} {
		test.Must(t, test.Err(beside.Update(ctx, content.Info{Digest: manifest, Labels: map[string]string{name: own.String()}}, paths...)))
		info := test.Value(c.Info(ctx, manifest))(t)
		if info.Labels[name] != layer.String() || info.Labels[name+"/client"] != own.String() {
			t.Errorf("after an update of the paths %q the labels are %v", paths, info.Labels)
		}
	}
	// Without leases of their own, both contents are kept by the manifest's references.
	test.Must(t, s.Clients().Leases().AddResource(ctx, l, leases.Resource{ID: manifest.String(), Type: "content"}))
	for _, d := range []digest.Digest{layer, own} {
		test.Must(t, s.Clients().Leases().DeleteResource(ctx, l, leases.Resource{ID: d.String(), Type: "content"}))
	}
	test.Must(t, s.Clients().Collect(ctx))
	for _, d := range []digest.Digest{layer, own} {
		test.Checkf(t, test.Err(c.Info(ctx, d)), "get content that the manifest refers to")
	}
}
