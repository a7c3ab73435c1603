package image

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
)

// TestCheckpointImages checks that only the manifest marks an image as a checkpoint. An ordinary
// image with the same configuration is not a checkpoint. The test also checks that
// checkpoint_images selects the images that may be restored.
func TestCheckpointImages(t *testing.T) {
	plain := build(t, v1.Config{Cmd: []string{"sh"}}, layer(t, file{name: "config.dump", body: "x"}))
	r, s, before := pulled(t, Config{CheckpointImages: []string{domain + "/warm/*", domain + "/one"}}, plain)
	of := func(key string) v1.Image { return mutate.Annotations(plain, map[string]string{key: "main"}).(v1.Image) }
	if before.Checkpoint || before.ID != idOf(t, plain) {
		t.Fatalf("the ordinary image is %s, checkpoint %v", before.ID, before.Checkpoint)
	}
	for name, c := range map[string]struct {
		key     string
		allowed bool
	}{
		"warm/a:1": {catalog.CheckpointOfCRIO, true},
		"warm/b:1": {catalog.CheckpointOfCRIU, true},
		"one":      {catalog.CheckpointOfCRIU, true}, // stands for one:latest
		"one:2":    {catalog.CheckpointOfCRIU, false},
		"cold/a:1": {catalog.CheckpointOfCRIU, false},
	} {
		pushed := of(c.key)
		r.push(t, name, pushed)
		img := pullImage(t, s, domain+"/"+name)
		if !img.Checkpoint || img.ID != digestOf(t, pushed) {
			t.Errorf("%s is %s, checkpoint %v", name, img.ID, img.Checkpoint)
		}
		if err := s.MayRestore(img); (err == nil) != c.allowed || err != nil && (!errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "registry.checkpoint_images")) {
			t.Errorf("%s: MayRestore returned %v; want it allowed: %v", name, err, c.allowed)
		}
		test.Must(t, s.Remove(t.Context(), img.ID))
	}
	s = reopen(t, s)
	if img, err := s.Get(app); err != nil || img.Checkpoint || img.ID != before.ID {
		t.Errorf("the ordinary image is %+v, %v", img, err)
	}
}

// TestCheckpointImageOverRestart checks that an image stays a checkpoint after a restart.
func TestCheckpointImageOverRestart(t *testing.T) {
	pushed := mutate.Annotations(build(t, v1.Config{}, layer(t, file{name: "a", body: "x"})), map[string]string{catalog.CheckpointOfCRIU: ""}).(v1.Image)
	_, s, _ := pulled(t, Config{}, pushed)
	s = reopen(t, s)
	img, err := s.Get(app)
	if err != nil || !img.Checkpoint || img.ID != digestOf(t, pushed) {
		t.Fatalf("the image is %+v, %v", img, err)
	}
	test.Must(t, s.Look(t.Context(), "looking", img, "", func(dir string) {
		sameTree(t, tree(t, dir), map[string]string{"a": "x"})
		test.Fails(t, os.WriteFile(filepath.Join(dir, "b"), nil, 0o600), "the image's directory is writable")
	}))
	if len(s.views.Release("looking")) > 0 {
		t.Error("Look still holds the image's layers")
	}
}

func TestByContent(t *testing.T) {
	amd, arm := build(t, v1.Config{}, layer(t, file{name: "a", body: "x"})), buildFor(t, "riscv64", v1.Config{}, layer(t, file{name: "a", body: "y"}))
	index := indexOf(map[string]v1.Image{runtime.GOARCH: amd, "riscv64": arm})
	_, s, img := pulled(t, Config{}, index)
	for _, ref := range []string{
		img.ID, strings.TrimPrefix(img.ID, "sha256:"),
		"other.test/x@" + digestOf(t, index), "other.test/x:1@" + digestOf(t, amd), img.RepoDigests[0],
	} {
		if found, err := s.ByContent(ref, catalog.NodePlatform); err != nil || found.ID != img.ID {
			t.Errorf("%s is %v, %v; want %s", ref, found, err, img.ID)
		}
	}
	for ref, is := range map[string]func(error) bool{
		img.RepoTags[0]:                         errdefs.IsInvalidArgument,
		"":                                      errdefs.IsInvalidArgument,
		img.ID[:20]:                             errdefs.IsInvalidArgument,
		"x@" + digestOf(t, arm):                 errdefs.IsNotFound,
		strings.Repeat("0", 64):                 errdefs.IsNotFound,
		"x@sha256:" + strings.Repeat("0", 1000): errdefs.IsInvalidArgument,
	} {
		if found, err := s.ByContent(ref, catalog.NodePlatform); !is(err) {
			t.Errorf("%s is %v; the error is not the wanted one: %v", ref, found, err)
		}
	}
}
