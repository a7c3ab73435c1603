package faults

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// TestKilledWhileAnImageComes kills the daemon at each failpoint of a pull or an import. The next
// daemon can pull or import the image. RemoveImage also removes the files of the first attempt.
func TestKilledWhileAnImageComes(t *testing.T) {
	t.Parallel()
	random := make([]byte, 12<<20) // large enough to be fetched in parts, and not compressible
	_, _ = rand.New(rand.NewSource(1)).Read(random)
	image := testbed.Busybox(t,
		testbed.WithLayer(testbed.File{Path: "large", Mode: 0o644, Body: random}),
		testbed.WithLayer(testbed.File{Path: "home/app/last", Mode: 0o644, Body: []byte("last")}))
	b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}})
	name := b.Registry.Push(t, "faults/large:1", image)
	b.Client.Pull(t, "", name)
	file := filepath.Join(b.Dir, "large.tar")
	if said, err := b.berth(t, "image", "export", name, "--file", file); err != nil {
		t.Fatalf("export: %v\n%s", err, said)
	}
	b.remove(t, name)
	b.Restart(t)
	atRest := b.imageFiles(t)

	pull := func(ctx context.Context) error {
		_, err := b.Client.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
		return err
	}
	bring := func(context.Context) error {
		_, err := b.berth(t, "image", "import", file)
		return err
	}
	for _, c := range []struct {
		place string
		by    string
		come  func(context.Context) error
	}{
		{failpoint.ImagePart, "pull", pull},
		{failpoint.ImageApplied, "pull", pull},
		{failpoint.ImageCommitted, "pull", pull},
		{failpoint.ImageUnpacked, "pull", pull},
		{failpoint.ImageFlush, "pull", pull},
		{failpoint.ImageRead, "import", bring},
		{failpoint.ImageApplied, "import", bring},
		{failpoint.ImageCommitted, "import", bring},
		{failpoint.ImageUnpacked, "import", bring},
	} {
		t.Run(c.by+" "+c.place, func(t *testing.T) {
			if b.Running() {
				b.Stop(t)
			}
			b.SetEnvironment("BERTH_FAILPOINT=" + c.place)
			b.Start(t)
			if err := c.come(t.Context()); err == nil && c.place != failpoint.ImageFlush {
				t.Error("the call succeeded, though the daemon was to be killed")
			}
			b.Wait(t, time.Minute)
			b.SetEnvironment()
			b.Start(t)
			testbed.Mustf(t, c.come(t.Context()), "%s again", c.by)
			pod := b.Client.RunPod(t, testbed.PodSpec{Image: name, Command: []string{"sleep", "1000"}})
			testbed.Same(t, pod.Container.Exec(t, "sh", "-c", "sha256sum </large; cat /home/app/last"), fmt.Sprintf("%x  -\nlast", sha256.Sum256(random)), "the files are")
			pod.Remove(t)
			if len(b.imageFiles(t)) < len(atRest)+8 { // five blobs and three layers
				t.Error("imageFiles has not found the files of the image: the test is broken")
			}
			b.remove(t, name)
			testbed.Eventually(t, time.Minute, func() error { return differ(atRest, b.imageFiles(t)) })
		})
	}
}

// berth runs a berth command for this daemon, and returns its output.
func (b *bed) berth(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(testbed.Within(t, time.Minute), filepath.Join(b.Bin, "berth"), arguments...)
	cmd.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(filepath.Dir(b.Socket), "admin.sock"))
	out, err := cmd.CombinedOutput()
	return string(bytes.TrimSpace(out)), err
}

func (b *bed) remove(t *testing.T, image string) {
	t.Helper()
	_, err := b.Client.RemoveImage(testbed.Within(t, time.Minute), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}})
	testbed.Must(t, err)
}

// imageFiles returns the daemon's files of images: blobs, downloads and layers.
func (b *bed) imageFiles(t *testing.T) map[string]bool {
	t.Helper()
	kept := map[string]bool{}
	images := filepath.Join(b.Root, "images")
	err := filepath.WalkDir(images, func(path string, d fs.DirEntry, err error) error {
		if os.IsNotExist(err) {
			return nil // removed during the walk
		}
		if err != nil {
			return err
		}
		if strings.HasPrefix(d.Name(), "idmap-probe-") {
			return fs.SkipDir // created by the start of the daemon
		}
		relative, _ := filepath.Rel(images, path)
		kept[relative] = true
		if filepath.Base(filepath.Dir(path)) == "snapshots" && d.IsDir() && len(strings.Split(relative, "/")) == 4 {
			return fs.SkipDir // files in a layer are not compared
		}
		return nil
	})
	testbed.Must(t, err)
	return kept
}

// differ returns an error with the paths that are in only one of the two sets.
func differ(before, now map[string]bool) error {
	var errs []error
	for path := range now {
		if !before[path] {
			errs = append(errs, fmt.Errorf("%s is left", path))
		}
	}
	for path := range before {
		if !now[path] {
			errs = append(errs, fmt.Errorf("%s was removed", path))
		}
	}
	return errors.Join(errs...)
}
