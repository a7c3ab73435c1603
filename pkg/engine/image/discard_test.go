package image

import (
	"bytes"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
)

func TestLayersAreDiscardedOnceUnpacked(t *testing.T) {
	reg := newTestRegistry(t)
	base := layer(t, file{name: "base", body: "of the base"})
	reg.push(t, "app:1", build(t, v1.Config{}, base, layer(t, file{name: "one", body: "1"})))
	reg.push(t, "app:2", build(t, v1.Config{}, base, layer(t, file{name: "two", body: "2"})))
	reg.push(t, "model:1", artifact(t, titled{title: "a", text: "of a"}))
	s := openStore(t, Config{HostsDir: reg.hosts(t), DiscardLayers: true})
	img := pullImage(t, s, app)
	<-s.views.Work.Collector.Request()
	// Kept are the manifest and the configuration, two unpacked layers, and their view.
	wantStored(t, s, 2, 3)
	s = reopen(t, s)
	pullImage(t, s, app)
	second := pullImage(t, s, domain+"/app:2")
	wantStored(t, s, 4, 5)
	wantFiles(t, s, second, "c1", "", map[string]string{"base": "of the base", "two": "2"})

	test.Refused(t, s.Export(t.Context(), &bytes.Buffer{}, []string{app}), errdefs.IsNotFound, "discarded")
	// Another snapshotter needs the discarded layers: they are downloaded again.
	wantFiles(t, s, img, "c2", disk.Native, map[string]string{"base": "of the base", "one": "1"})

	// The blobs of an artifact are not discarded.
	model := pullImage(t, s, domain+"/model:1")
	<-s.views.Work.Collector.Request()
	exported(t, s, domain+"/model:1")
	volumeOf(t, s, "c3", model)
	reg.Close()
	test.Says(t, test.Err(s.PrepareRootfs(t.Context(), "c4", second, disk.Native, nil)), "berth image pull --handler")
}

// Compressed layers stay until the unpacked layers are flushed to disk.
func TestLayersAreNotDiscardedBeforeTheyAreFlushed(t *testing.T) {
	_, s := serve(t, Config{DiscardLayers: true}, build(t, v1.Config{}, layer(t, file{name: "one", body: "1"})))
	s.files.Flusher.Flushing.Lock()
	pullImage(t, s, app)
	collected := s.views.Work.Collector.Request()
	select {
	case <-collected:
		t.Error("the collection did not wait for the flush")
	case <-time.After(time.Second):
	}
	blobs := 0
	test.Must(t, s.files.Content.Walk(disk.InNamespace(t.Context()), func(content.Info) error { blobs++; return nil }))
	if blobs != 3 {
		t.Errorf("%d blobs are stored before the flush, want 3", blobs)
	}
	s.files.Flusher.Flushing.Unlock()
	wantStored(t, s, 2, 2)
}
