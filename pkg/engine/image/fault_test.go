package image

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// The test binary is also the daemon that gets killed: with these variables set it opens the
// store, pulls an image, and waits until it is killed.
const (
	victimRoot  = "BERTH_TEST_IMAGE_ROOT"
	victimHosts = "BERTH_TEST_IMAGE_HOSTS"
	victimRef   = "BERTH_TEST_IMAGE_REF"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(victimRoot); root != "" {
		victim(root)
		return
	}
	os.Exit(m.Run())
}

func victim(root string) {
	ctx := context.Background()
	s, err := Open(ctx, Config{Root: root, HostsDir: os.Getenv(victimHosts)})
	if err != nil {
		panic(err)
	}
	img, err := s.Pull(ctx, pull.Request{Ref: os.Getenv(victimRef)})
	if err == nil {
		_, err = s.PrepareVolume(ctx, "volume", img, "")
	}
	if err == nil && img.ArtifactType == "" {
		_, err = s.PrepareRootfs(ctx, "victim", img, "", nil)
	}
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.WriteString("done\n"); err != nil {
		panic(err)
	}
	select {}
}

// killed pulls an image in another process, and kills that process once ready returns true.
func killed(t *testing.T, c Config, ref string, ready func(stdout string) bool) {
	t.Helper()
	out := &lockedBuffer{}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimRoot+"="+c.Root, victimHosts+"="+c.HostsDir, victimRef+"="+ref)
	cmd.Stdout, cmd.Stderr = out, out
	test.Must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error reports the kill
	}()
	test.Eventually(t, "the other process has reached the moment at which the test kills it", func() bool { return ready(out.String()) })
}

// forVictim serves an image, and returns the configuration of a store that does not exist yet.
func forVictim(t *testing.T, img v1.Image) (*testRegistry, Config) {
	t.Helper()
	reg := newTestRegistry(t)
	reg.push(t, "app:1", img)
	return reg, Config{Root: filepath.Join(t.TempDir(), "images"), HostsDir: reg.hosts(t)}
}

func isDone(stdout string) bool { return strings.Contains(stdout, "done") }

func random(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.Read(b) // rand.Read never fails
	return b
}

// bulk returns a layer of random bytes, which is not compressed.
func bulk(t testing.TB, size int) v1.Layer {
	t.Helper()
	return layerAt(t, gzip.NoCompression, file{name: "big", body: string(random(size))})
}

// slow returns a layer that is slow to decompress.
func slow(t testing.TB, size int) v1.Layer {
	t.Helper()
	return layerAt(t, gzip.HuffmanOnly, file{name: "big", body: hex.EncodeToString(random(size / 2))})
}

func TestKilledInTheMiddleOfADownload(t *testing.T) {
	reg, c := forVictim(t, build(t, v1.Config{}, layer(t, file{name: "small"}), bulk(t, 4<<20)))
	g := newGate()
	reg.setGuard(g.guard)
	killed(t, c, app, func(string) bool { return reg.count("GET", "/blobs/") > 0 })
	close(g.open)

	s := openStore(t, c)
	if len(s.List()) != 0 || leasesLeft(t, s) != 1 {
		t.Errorf("after the kill there are images %v and %d leases, want none and 1", s.List(), leasesLeft(t, s))
	}
	wantNothingKept(t, s)
	pullImage(t, s, app)
}

func TestKilledInTheMiddleOfUnpacking(t *testing.T) {
	const size = 24 << 20
	_, c := forVictim(t, build(t, v1.Config{}, layer(t, file{name: "first"}), slow(t, size)))
	half := filepath.Join(c.Root, disk.SnapshotsDir, disk.Overlayfs, "snapshots", "*", "fs", "big")
	killed(t, c, app, func(string) bool {
		found, _ := filepath.Glob(half)
		return len(found) > 0
	})
	// The kill came during the unpacking: the layer's file is still in an uncommitted snapshot.
	if found, _ := filepath.Glob(half); len(found) != 1 {
		t.Fatalf("partially unpacked layers: %v, want 1", found)
	}
	s := openStore(t, c)
	// Open cleans up by itself, without another collection.
	if found, _ := filepath.Glob(half); len(found) != 0 {
		t.Errorf("left after the kill: %v", found)
	}
	img := pullImage(t, s, app)
	rootfs := test.Value(s.PrepareRootfs(t.Context(), "c", img, "", nil))(t)
	info := test.Value(os.Stat(filepath.Join(mounted(t, rootfs.Mounts), "big")))(t)
	if info.Size() != size {
		t.Errorf("the file has %d bytes, want %d", info.Size(), size)
	}
}

// A pull is killed at several moments. The next pull gets a complete image, whatever was left.
func TestKilledAnywhere(t *testing.T) {
	var layers []v1.Layer
	files, blobs, ofBlobs := map[string]string{}, []titled{}, map[string]string{}
	for n := range 6 {
		dir := fmt.Sprintf("opt%d/", n)
		entries := []file{{name: dir}}
		files[dir] = ""
		for i := range 60 {
			entries = append(entries, file{name: fmt.Sprintf("%sfile%d", dir, i), body: strings.Repeat("x", 2000)})
		}
		if n > 0 {
			// This layer has no entry for the file's directory, and so needs the layer below.
			entries = append(entries, file{name: fmt.Sprintf("opt%d/late%d", n-1, n), body: "late"})
		}
		for _, e := range entries {
			files[e.name] = e.body
		}
		layers = append(layers, layer(t, entries...))
	}
	for n := range 60 {
		name, text := fmt.Sprintf("dir%d/file", n), strings.Repeat(fmt.Sprint(n), 5000)
		blobs = append(blobs, titled{title: name, text: text})
		ofBlobs[fmt.Sprintf("dir%d/", n)], ofBlobs[name] = "", text
	}
	for name, img := range map[string]v1.Image{"image": build(t, v1.Config{}, layers...), "artifact": artifact(t, blobs...)} {
		_, c := forVictim(t, img)
		begin := time.Now()
		killed(t, c, app, isDone)
		whole := time.Since(begin)
		const kills = 6
		for n := range kills {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				c.Root = filepath.Join(t.TempDir(), "images")
				begin := time.Now()
				killed(t, c, app, func(string) bool { return time.Since(begin) > whole*time.Duration(n)/kills })
				s := openStore(t, c)
				_, snaps, _ := stored(t, s)
				for _, name := range snaps {
					if strings.Contains(name, "/extract-") || strings.Contains(name, "berth-below-") {
						t.Errorf("left behind: %s", name)
					}
				}
				img := pullImage(t, s, app)
				if name == "image" {
					wantFiles(t, s, img, "c", "", files)
				} else {
					sameTree(t, tree(t, volumeOf(t, s, "c", img)), ofBlobs)
				}
				wantLeases(t, s, 0)
			})
		}
	}
}

func TestKilledWithARootfs(t *testing.T) {
	_, c := forVictim(t, layered(t, v1.Config{}))
	killed(t, c, app, isDone)
	s := openStore(t, c)
	before := hasRootfs(t, s, "victim", "")
	test.Must(t, s.Retain(t.Context(), nil))
	if !before || hasRootfs(t, s, "victim", "") {
		t.Errorf("root filesystem of the killed daemon: present after the restart: %v, want true; after Retain: %v, want false", before, hasRootfs(t, s, "victim", ""))
	}
	wantStored(t, s, 5, 4)
}

// smallDisk mounts a filesystem of that many MiB: ext4 on a loop device. A tmpfs would be unlike
// a node's disk, because it has no journal and frees space at once.
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "disk")
	f := test.Value(os.Create(img))(t)
	test.Must(t, f.Truncate(mib<<20))
	test.Must(t, f.Close())
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", "-N", "4096", img).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4 (package e2fsprogs): %v: %s", err, out)
	}
	dir := t.TempDir()
	test.Must(t, (&mount.Mount{Type: "ext4", Source: img, Options: []string{"loop"}}).Mount(dir))
	t.Cleanup(func() {
		test.Checkf(t, mount.UnmountAll(dir, unix.MNT_DETACH), "unmount %s", dir)
	})
	return dir
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	test.Must(t, unix.Statfs(dir, &st))
	return int64(st.Bavail) * st.Bsize
}

func TestFullDisk(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "small:1", layered(t, v1.Config{}))
	reg.push(t, "download:1", build(t, v1.Config{}, layer(t, file{name: "first"}), bulk(t, 16<<20)))
	reg.push(t, "unpack:1", build(t, v1.Config{}, layer(t, file{name: "first"}), bulk(t, 4<<20), layer(t, file{name: "zeros", body: strings.Repeat("\x00", 12<<20)})))
	dir := smallDisk(t, 14)
	s := openStore(t, Config{Root: filepath.Join(dir, "images"), HostsDir: reg.hosts(t)})
	test.Must(t, s.Retain(t.Context(), nil))
	pullImage(t, s, domain+"/small:1")
	wantStored(t, s, 5, 4)
	unix.Sync()
	before := freeBytes(t, dir)

	for _, name := range []string{"download:1", "unpack:1"} {
		_, err := s.Pull(t.Context(), pull.Request{Ref: domain + "/" + name})
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), dir) {
			t.Fatalf("%s on a full disk: %v", name, err)
		}
		wantLeases(t, s, 0)
		// The failed pull cleans up by itself.
		if b, sn, in := stored(t, s); len(b) != 5 || len(sn) != 4 || len(in) != 0 {
			t.Errorf("%s left behind: %d blobs, %v, ingests %v", name, len(b), sn, in)
		}
		unix.Sync()
		if lost := before - freeBytes(t, dir); lost > 1<<20 {
			t.Errorf("the failed pull of %s still uses %d bytes of the disk", name, lost)
		}
	}
	img := test.Value(s.Get(domain + "/small:1"))(t)
	wantFiles(t, s, img, "c", "", layeredTree)
	test.Must(t, s.RemoveRootfs(t.Context(), "c", ""))
	test.Must(t, s.Close())
	s = openStore(t, s.cfg)
	if len(s.List()) != 1 {
		t.Errorf("after a restart there are %d images, want 1", len(s.List()))
	}
	test.Must(t, s.Close())
}

func TestFullDiskHasNoRoomForARootfs(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "small:1", layered(t, v1.Config{}))
	dir := smallDisk(t, 16)
	s := openStore(t, Config{Root: filepath.Join(dir, "images"), HostsDir: reg.hosts(t)})
	img := pullImage(t, s, domain+"/small:1")
	// Use all inodes, so that not even a directory can be created.
	filler := filepath.Join(dir, "filler")
	test.Must(t, os.Mkdir(filler, 0o700))
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(filler, time.Duration(i).String()))
		if err != nil {
			break
		}
		f.Close()
	}
	test.Refused(t, test.Err(s.PrepareRootfs(t.Context(), "c", img, "", nil)), errdefs.IsResourceExhausted, "no space left")
	if left, _ := os.ReadDir(s.files.Path(disk.RootfsDir, disk.Overlayfs)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	test.Must(t, os.RemoveAll(filler))
	test.Checkf(t, test.Err(s.PrepareRootfs(t.Context(), "c", img, "", nil)), "prepare a root filesystem after inodes were freed")
	test.Must(t, s.Close())
}
