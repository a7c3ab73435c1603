package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// files creates files below a new directory, and a directory for a name that ends in "/".
func files(t *testing.T, names ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, name := range names {
		path := filepath.Join(root, name)
		test.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if name[len(name)-1] == '/' {
			test.Must(t, os.MkdirAll(path, 0o755))
			continue
		}
		test.Must(t, os.WriteFile(path, []byte(name), 0o644))
	}
	return root
}

// names lists a tar file.
func names(t *testing.T, file string) []string {
	t.Helper()
	b := test.Value(os.ReadFile(file))(t)
	var all []string
	for r := tar.NewReader(bytes.NewReader(b)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(all)
			return all
		}
		test.Must(t, err)
		all = append(all, h.Name)
	}
}

func open(t *testing.T) *Dir {
	t.Helper()
	return test.Value(Open(filepath.Join(t.TempDir(), "a", "b")))(t)
}

func whiteout(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a device as overlayfs does")
	}
	test.Must(t, unix.Mknod(path, unix.S_IFCHR, 0))
}

func TestFiles(t *testing.T) {
	layers := files(t, "etc/keep", "etc/gone", "opaque/old", "opaque/again", "opaque/sub/deep", "was-file")
	test.Must(t, os.Symlink("/", filepath.Join(layers, "out")))
	test.Must(t, os.Symlink("opaque", filepath.Join(layers, "beside")))
	written := files(t, "etc/keep", "new", "opaque/again", "opaque/new", "out/", "was-file/", "fresh/", "beside/")
	whiteout(t, filepath.Join(written, "etc", "gone"))
	for _, dir := range []string{"opaque", "out", "was-file", "fresh", "beside"} {
		test.Must(t, unix.Setxattr(filepath.Join(written, dir), "trusted.overlay.opaque", []byte("y"), 0))
	}
	d := open(t)
	test.Must(t, d.Files(t.Context(), written, layers))
	want := []string{"beside/", "etc/", "etc/keep", "fresh/", "new", "opaque/", "opaque/again", "opaque/new", "out/", "was-file/"}
	test.EqualLists(t, "changed", names(t, filepath.Join(d.Path, metadata.RootFsDiffTar)), want)
	var deleted []string
	test.Must(t, test.Err(metadata.ReadJSONFile(&deleted, d.Path, metadata.DeletedFilesFile)))
	test.EqualLists(t, "deleted", deleted, []string{"etc/gone", "opaque/old", "opaque/sub"})
}

func TestFilesOfAnIdleContainer(t *testing.T) {
	d := open(t)
	test.Must(t, d.Files(t.Context(), t.TempDir(), files(t, "etc/keep")))
	if got := names(t, filepath.Join(d.Path, metadata.RootFsDiffTar)); len(got) != 0 {
		t.Errorf("changed: %q", got)
	}
	test.ErrorIs(t, test.Err(os.Stat(filepath.Join(d.Path, metadata.DeletedFilesFile))), os.ErrNotExist, "deleted files of a container that deleted none")
}

// A sparse file larger than the disk is refused, and does not fill the disk.
func TestFilesWithHoles(t *testing.T) {
	written := files(t, "ab", "huge")
	if err := os.Truncate(filepath.Join(written, "huge"), 1<<43); err != nil {
		t.Skipf("the file system of the test has no files of that size: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // a copy of the holes would fill the disk by then
	defer cancel()
	d := open(t)
	test.Refused(t, d.Files(ctx, written, t.TempDir()), errdefs.IsResourceExhausted, "huge")
	if info, err := os.Stat(filepath.Join(d.Path, metadata.RootFsDiffTar)); err != nil || info.Size() > 1<<20 {
		t.Errorf("the archive is %v, %v", info, err)
	}
}

// A file with two names, which are hard links, needs space only once.
func TestFilesWithTwoNames(t *testing.T) {
	written := files(t, "a")
	test.Must(t, os.Truncate(filepath.Join(written, "a"), small+1))
	test.Must(t, os.Link(filepath.Join(written, "a"), filepath.Join(written, "b")))
	info := test.Value(os.Stat(filepath.Join(written, "b")))(t)
	r := &room{}
	if !r.first(info) || r.first(info) {
		t.Error("the second name is counted as another file")
	}
	d := open(t)
	test.Must(t, d.Files(t.Context(), written, t.TempDir()))
	test.EqualLists(t, "packed", names(t, filepath.Join(d.Path, metadata.RootFsDiffTar)), []string{"a", "b"})
}

// A log that is a symbolic link must not copy a file of the host into the archive,
// which a pod's author may read.
func TestLogThatIsALink(t *testing.T) {
	logs, secret := t.TempDir(), filepath.Join(t.TempDir(), "shadow")
	test.Must(t, os.WriteFile(secret, []byte("secret"), 0o600))
	test.Must(t, os.Mkdir(filepath.Join(logs, "main"), 0o755))
	test.Must(t, os.Symlink(secret, filepath.Join(logs, "main", "0.log")))
	test.Must(t, os.Symlink(filepath.Dir(secret), filepath.Join(logs, "linked")))
	for _, name := range []string{"main/0.log", "linked/shadow"} {
		d := open(t)
		test.Is(t, d.Log(logs, filepath.Join(logs, name)), errdefs.IsFailedPrecondition, "%s", name)
		if text, err := os.ReadFile(filepath.Join(d.Path, "container.log")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the archive has %q: %v", name, text, err)
		}
	}
}

func TestPack(t *testing.T) {
	d := open(t)
	test.Must(t, os.WriteFile(filepath.Join(d.Images(), "inventory.img"), []byte("i"), 0o644))
	at := time.Now()
	test.Must(t, d.Describe(metadata.ContainerConfig{ID: "id", Name: "main", CheckpointedAt: at}, []byte(`{"ociVersion":"1.0"}`), map[string]string{"state": "running"}))
	log := filepath.Join(t.TempDir(), "log")
	test.Must(t, d.Log("", log)) // the log does not exist yet
	test.Must(t, os.WriteFile(log, []byte("line\n"), 0o644))
	test.Must(t, d.Log("", log))
	config, _, err := metadata.ReadContainerCheckpointConfigDump(d.Path)
	if err != nil || config.ID != "id" || !config.CheckpointedAt.Equal(at) {
		t.Errorf("config.dump: %+v, %v", config, err)
	}
	if spec, _, err := metadata.ReadContainerCheckpointSpecDump(d.Path); err != nil || spec.Version != "1.0" {
		t.Errorf("spec.dump: %+v, %v", spec, err)
	}
	status, err := os.ReadFile(filepath.Join(d.Path, metadata.StatusDumpFile))
	if err != nil || !json.Valid(status) {
		t.Errorf("status.dump: %s, %v", status, err)
	}

	locations := t.TempDir()
	location := filepath.Join(locations, "a.tar")
	test.Must(t, os.WriteFile(location, []byte("of an earlier call"), 0o644))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, d.Pack(cancelled, location), context.Canceled, "cancelled")
	if b, _ := os.ReadFile(location); string(b) != "of an earlier call" {
		t.Errorf("a failed call left %q", b)
	}
	test.Must(t, d.Pack(t.Context(), location))
	info, err := os.Stat(location)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("archive: %v, %v", info, err)
	}
	want := []string{"checkpoint/", "checkpoint/inventory.img", "config.dump", "container.log", "spec.dump", "status.dump"}
	test.EqualLists(t, "archive has", names(t, location), want)
	if left, _ := os.ReadDir(locations); len(left) != 1 {
		t.Errorf("beside the archive are: %v", left)
	}
	again := test.Value(Open(d.Path))(t)
	if left, _ := os.ReadDir(again.Path); len(left) != 1 {
		t.Errorf("Open kept old files: %v", left)
	}
}

// TestPackToOneLocation packs two checkpoints to the same file at the same time.
func TestPackToOneLocation(t *testing.T) {
	location := filepath.Join(t.TempDir(), "a.tar")
	var packing sync.WaitGroup
	for _, name := range []string{"one", "two"} {
		d := test.Value(Open(filepath.Join(t.TempDir(), name)))(t)
		test.Must(t, os.WriteFile(filepath.Join(d.Images(), "pages.img"), make([]byte, 1<<20), 0o600))
		packing.Go(func() {
			for range 30 {
				test.Check(t, d.Pack(t.Context(), location))
			}
		})
	}
	packing.Wait()
	test.EqualLists(t, "archive has", names(t, location), []string{"checkpoint/", "checkpoint/pages.img"})
}
