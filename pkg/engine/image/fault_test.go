package image

import (
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
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
)

// The test binary is also the daemon that gets killed: with these set it opens
// the store, pulls, and waits for its end.
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
	img, err := s.Pull(ctx, PullRequest{Ref: os.Getenv(victimRef)})
	if err != nil {
		panic(err)
	}
	if img.ArtifactType != "" {
		_, err = s.PrepareVolume(ctx, "victim", img, "")
	} else {
		_, err = s.PrepareRootfs(ctx, "victim", img, "")
	}
	if err != nil {
		panic(err)
	}
	if _, err := os.Stdout.WriteString("done\n"); err != nil {
		panic(err)
	}
	select {}
}

// killed runs a pull in another process and kills it when ready says so.
func killed(t *testing.T, root, hosts, ref string, ready func(stdout string) bool) {
	t.Helper()
	out := &lockedBuffer{}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), victimRoot+"="+root, victimHosts+"="+hosts, victimRef+"="+ref)
	cmd.Stdout, cmd.Stderr = out, out
	must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed, as it shall be
	}()
	eventually(t, "the victim is where it shall be killed", func() bool { return ready(out.String()) })
}

// bulk is a layer that does not compress.
func bulk(t testing.TB, size int) v1.Layer {
	t.Helper()
	b := make([]byte, size)
	_, err := rand.Read(b)
	must(t, err)
	return layerAt(t, gzip.NoCompression, file{name: "big", body: string(b)})
}

// slow is a layer that takes its time to unpack.
func slow(t testing.TB, size int) v1.Layer {
	t.Helper()
	b := make([]byte, size/2)
	_, err := rand.Read(b)
	must(t, err)
	return layerAt(t, gzip.HuffmanOnly, file{name: "big", body: hex.EncodeToString(b)})
}

func TestKilledInTheMiddleOfADownload(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "small"}), bulk(t, 4<<20)))
	stalled := make(chan struct{})
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		<-stalled
		return false
	})
	root := filepath.Join(t.TempDir(), "images")
	hosts := reg.hosts(t)
	killed(t, root, hosts, domain+"/app:1", func(string) bool { return reg.count("GET", "/blobs/") > 0 })
	close(stalled)

	s := openStore(t, Config{Root: root, HostsDir: hosts})
	if len(s.List()) != 0 || leasesLeft(t, s) != 1 {
		t.Errorf("after the kill: images %v, %d leases", s.List(), leasesLeft(t, s))
	}
	wantNothingKept(t, s)
	pullImage(t, s, domain+"/app:1")
}

func TestKilledInTheMiddleOfUnpacking(t *testing.T) {
	reg := newTestRegistry(t)
	const size = 24 << 20
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "first"}), slow(t, size)))
	root := filepath.Join(t.TempDir(), "images")
	hosts := reg.hosts(t)
	half := filepath.Join(root, snapshotsDir, Overlayfs, "snapshots", "*", "fs", "big")
	killed(t, root, hosts, domain+"/app:1", func(string) bool {
		found, _ := filepath.Glob(half)
		return len(found) > 0
	})
	// The kill is real: the layer is there, and not whole.
	if found, _ := filepath.Glob(half); len(found) != 1 {
		t.Fatalf("half unpacked layers: %v", found)
	}
	s := openStore(t, Config{Root: root, HostsDir: hosts})
	// Without another collection: Open has cleaned up.
	if found, _ := filepath.Glob(half); len(found) != 0 {
		t.Errorf("left after the kill: %v", found)
	}
	img := pullImage(t, s, domain+"/app:1")
	rootfs, err := s.PrepareRootfs(t.Context(), "c", img, "")
	must(t, err)
	info, err := os.Stat(filepath.Join(mounted(t, rootfs.Mounts), "big"))
	must(t, err)
	if info.Size() != size {
		t.Errorf("the file has %d bytes", info.Size())
	}
}

// However far a pull has come, with its layers unpacked at the same time: what it left
// is whole, and is used or removed.
func TestKilledAnywhere(t *testing.T) {
	reg := newTestRegistry(t)
	var layers []v1.Layer
	want := map[string]string{}
	for n := range 6 {
		dir := fmt.Sprintf("opt%d/", n)
		files := []file{{name: dir}}
		for i := range 60 {
			name := fmt.Sprintf("%sfile%d", dir, i)
			files = append(files, file{name: name, body: strings.Repeat("x", 2000)})
			want[name] = strings.Repeat("x", 2000)
		}
		want[dir] = ""
		if n > 0 {
			// It has no entry for the directory: it waits for the layer below.
			files = append(files, file{name: fmt.Sprintf("opt%d/late%d", n-1, n), body: "late"})
			want[fmt.Sprintf("opt%d/late%d", n-1, n)] = "late"
		}
		layers = append(layers, layer(t, files...))
	}
	reg.push(t, "app:1", build(t, v1.Config{}, layers...))
	hosts := reg.hosts(t)
	begin := time.Now()
	killed(t, filepath.Join(t.TempDir(), "images"), hosts, domain+"/app:1", func(out string) bool { return strings.Contains(out, "done") })
	whole := time.Since(begin)

	const kills = 12
	for n := range kills {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "images")
			begin := time.Now()
			killed(t, root, hosts, domain+"/app:1", func(string) bool { return time.Since(begin) > whole*time.Duration(n)/kills })
			s := openStore(t, Config{Root: root, HostsDir: hosts})
			_, snaps, _ := stored(t, s)
			for _, name := range snaps {
				if strings.Contains(name, "/extract-") || strings.Contains(name, belowPrefix) {
					t.Errorf("left behind: %s", name)
				}
			}
			img := pullImage(t, s, domain+"/app:1")
			rootfs, err := s.PrepareRootfs(t.Context(), "c", img, "")
			must(t, err)
			sameTree(t, tree(t, mounted(t, rootfs.Mounts)), want)
			if n := leasesLeft(t, s); n != 0 {
				t.Errorf("%d leases", n)
			}
		})
	}
}

func TestKilledWithARootfs(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	root := filepath.Join(t.TempDir(), "images")
	hosts := reg.hosts(t)
	killed(t, root, hosts, domain+"/app:1", func(out string) bool { return strings.Contains(out, "done") })
	s := openStore(t, Config{Root: root, HostsDir: hosts})
	img, err := s.Get(domain + "/app:1")
	must(t, err)
	if _, err := s.RootfsOf(t.Context(), Use{Owner: "victim", ChainID: img.ChainID}); err != nil {
		t.Errorf("the container's root filesystem: %v", err)
	}
	must(t, s.Retain(t.Context(), nil))
	if _, err := s.RootfsOf(t.Context(), Use{Owner: "victim", ChainID: img.ChainID}); !errdefs.IsNotFound(err) {
		t.Errorf("after nobody owned it: %v", err)
	}
	wantStored(t, s, 5, 4)
}

// smallDisk mounts a filesystem of so many MiB: ext4 on a loop device, which a
// node's disk is like (a tmpfs has no journal and frees at once).
func smallDisk(t *testing.T, mib int64) string {
	t.Helper()
	img := filepath.Join(t.TempDir(), "disk")
	f, err := os.Create(img)
	must(t, err)
	must(t, f.Truncate(mib<<20))
	must(t, f.Close())
	if out, err := exec.Command("mkfs.ext4", "-q", "-m", "0", "-N", "4096", img).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4 (package e2fsprogs): %v: %s", err, out)
	}
	dir := t.TempDir()
	must(t, (&mount.Mount{Type: "ext4", Source: img, Options: []string{"loop"}}).Mount(dir))
	t.Cleanup(func() {
		if err := mount.UnmountAll(dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

func freeBytes(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	must(t, unix.Statfs(dir, &st))
	return int64(st.Bavail) * st.Bsize
}

func TestFullDisk(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "small:1", layered(t, v1.Config{}))
	reg.push(t, "download:1", build(t, v1.Config{}, layer(t, file{name: "first"}), bulk(t, 32<<20)))
	reg.push(t, "unpack:1", build(t, v1.Config{}, layer(t, file{name: "first"}), bulk(t, 8<<20), layer(t, file{name: "zeros", body: strings.Repeat("\x00", 16<<20)})))
	disk := smallDisk(t, 24)
	s := openStore(t, Config{Root: filepath.Join(disk, "images"), HostsDir: reg.hosts(t)})
	must(t, s.Retain(t.Context(), nil))
	pullImage(t, s, domain+"/small:1")
	wantStored(t, s, 5, 4)
	unix.Sync()
	before := freeBytes(t, disk)

	for _, name := range []string{"download:1", "unpack:1"} {
		_, err := s.Pull(t.Context(), PullRequest{Ref: domain + "/" + name})
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "no space left") || !strings.Contains(err.Error(), disk) {
			t.Fatalf("%s on a full disk: %v", name, err)
		}
		if n := leasesLeft(t, s); n != 0 {
			t.Errorf("%s: %d leases are left", name, n)
		}
		// The failed pull itself has cleaned up.
		if b, sn, in := stored(t, s); len(b) != 5 || len(sn) != 4 || len(in) != 0 {
			t.Errorf("%s left behind: %d blobs, %v, ingests %v", name, len(b), sn, in)
		}
		unix.Sync()
		if lost := before - freeBytes(t, disk); lost > 1<<20 {
			t.Errorf("%s cost %d bytes of the disk", name, lost)
		}
	}
	img, err := s.Get(domain + "/small:1")
	must(t, err)
	root, err := s.PrepareRootfs(t.Context(), "c", img, "")
	must(t, err)
	sameTree(t, tree(t, mounted(t, root.Mounts)), layeredTree)
	must(t, mount.UnmountAll(mountedAt(t, root), 0))
	must(t, s.RemoveRootfs(t.Context(), "c", ""))
	must(t, s.Close())
	s = openStore(t, s.cfg)
	if len(s.List()) != 1 {
		t.Errorf("after restart %d images", len(s.List()))
	}
	must(t, s.Close())
}

// mountedAt mounts a root filesystem once more, to show that it can be.
func mountedAt(t *testing.T, root *Rootfs) string {
	t.Helper()
	return mounted(t, []mount.Mount{{Type: "bind", Source: root.Upper, Options: []string{"rbind", "ro"}}})
}

func TestFullDiskHasNoRoomForARootfs(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "small:1", layered(t, v1.Config{}))
	disk := smallDisk(t, 16)
	s := openStore(t, Config{Root: filepath.Join(disk, "images"), HostsDir: reg.hosts(t)})
	img := pullImage(t, s, domain+"/small:1")
	// Fill the last inode, so that not even a directory can be made.
	filler := filepath.Join(disk, "filler")
	must(t, os.Mkdir(filler, 0o700))
	for i := 0; ; i++ {
		f, err := os.Create(filepath.Join(filler, time.Duration(i).String()))
		if err != nil {
			break
		}
		f.Close()
	}
	_, err := s.PrepareRootfs(t.Context(), "c", img, "")
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "no space left") {
		t.Errorf("root filesystem on a full disk: %v", err)
	}
	if left, _ := os.ReadDir(s.files.path(rootfsDir, Overlayfs)); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	must(t, os.RemoveAll(filler))
	if _, err := s.PrepareRootfs(t.Context(), "c", img, ""); err != nil {
		t.Errorf("after making room: %v", err)
	}
	must(t, s.Close())
}
