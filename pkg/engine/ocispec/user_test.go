package ocispec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

const (
	imagePasswd = `root:x:0:0:root:/root:/bin/sh
# comment:x:1:1
broken line
letters:x:zero:zero:::
huge:x:4294967296:1:::
nobody:x:65534:65533:nobody:/:/sbin/nologin
app:x:1000:1001:App,,,:/home/app:/bin/sh
app:x:1:1:a second one of that name:/evil:/bin/sh
short:x:1002:1002
`
	imageGroup = `root:x:0:
bad
letters:x:zero:app
staff:x:50:other, app ,app
app:x:1001:
wheel:x:10:root,app
audio:x:29:nobody
`
)

func rootfs(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "rootfs")
	write(t, filepath.Join(root, "etc/passwd"), imagePasswd)
	write(t, filepath.Join(root, "etc/group"), imageGroup)
	return root
}

func write(t *testing.T, path, content string) {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	test.Must(t, os.WriteFile(path, []byte(content), 0o644))
}

func id(v int64) *runtimeapi.Int64Value { return &runtimeapi.Int64Value{Value: v} }

func TestResolveUser(t *testing.T) {
	root := rootfs(t)
	type sc = runtimeapi.LinuxContainerSecurityContext
	for name, c := range map[string]struct {
		image string
		sc    *sc
		want  User
	}{
		"nothing":               {"", nil, User{0, 0, []uint32{0, 10}, "root", "/root"}},
		"image name":            {"app", &sc{}, User{1000, 1001, []uint32{10, 50, 1001}, "app", "/home/app"}},
		"image name and group":  {"app:staff", nil, User{1000, 50, []uint32{10, 50}, "app", "/home/app"}},
		"image name and number": {"app:7", nil, User{1000, 7, []uint32{7, 10, 50}, "app", "/home/app"}},
		"image number":          {"1000", nil, User{1000, 1001, []uint32{10, 50, 1001}, "app", "/home/app"}},
		"image numbers":         {"1000:1000", nil, User{1000, 1000, []uint32{10, 50, 1000}, "app", "/home/app"}},
		"image unknown number":  {"4242", nil, User{4242, 0, []uint32{0}, "", ""}},
		"image group only":      {":staff", nil, User{0, 50, []uint32{10, 50}, "root", "/root"}},
		"user":                  {"app:staff", &sc{RunAsUser: id(65534)}, User{65534, 65533, []uint32{29, 65533}, "nobody", "/"}},
		"user not in the image": {"app:staff", &sc{RunAsUser: id(7)}, User{7, 0, []uint32{0}, "", ""}},
		"user and group":        {"app", &sc{RunAsUser: id(1000), RunAsGroup: id(3)}, User{1000, 3, []uint32{3, 10, 50}, "app", "/home/app"}},
		"username":              {"", &sc{RunAsUsername: "nobody"}, User{65534, 65533, []uint32{29, 65533}, "nobody", "/"}},
		"username and group":    {"", &sc{RunAsUsername: "nobody", RunAsGroup: id(5)}, User{65534, 5, []uint32{5, 29}, "nobody", "/"}},
		"username of digits":    {"", &sc{RunAsUsername: "1000"}, User{1000, 1001, []uint32{10, 50, 1001}, "app", "/home/app"}},
		"four fields":           {"short", nil, User{1002, 1002, []uint32{1002}, "short", ""}},
		"supplemental":          {"app", &sc{SupplementalGroups: []int64{50, 9, 9}}, User{1000, 1001, []uint32{9, 10, 50, 1001}, "app", "/home/app"}},
		"strict": {"app", &sc{SupplementalGroups: []int64{9}, SupplementalGroupsPolicy: runtimeapi.SupplementalGroupsPolicy_Strict},
			User{1000, 1001, []uint32{9, 1001}, "app", "/home/app"}},
		"largest": {"", &sc{RunAsUser: id(2147483647)}, User{2147483647, 0, []uint32{0}, "", ""}},
	} {
		got, err := ResolveUser(t.Context(), root, imagespec.ImageConfig{User: c.image}, c.sc)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.UID != c.want.UID || got.GID != c.want.GID || got.Username != c.want.Username || got.Home != c.want.Home || !slices.Equal(got.AdditionalGids, c.want.AdditionalGids) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

func TestResolveUserRefuses(t *testing.T) {
	root := rootfs(t)
	type sc = runtimeapi.LinuxContainerSecurityContext
	for name, c := range map[string]struct {
		image string
		sc    *sc
		class error
		says  string
	}{
		"username unknown":       {"", &sc{RunAsUsername: "ghost"}, errdefs.ErrFailedPrecondition, "ghost"},
		"username with bad id":   {"", &sc{RunAsUsername: "letters"}, errdefs.ErrFailedPrecondition, "letters"},
		"image user unknown":     {"ghost", nil, errdefs.ErrFailedPrecondition, "ghost"},
		"image group unknown":    {"app:ghosts", nil, errdefs.ErrFailedPrecondition, "ghosts"},
		"image user wraps":       {"4294967296", nil, errdefs.ErrInvalidArgument, "range"},
		"image with three parts": {"a:b:c", nil, errdefs.ErrInvalidArgument, "user[:group]"},
	} {
		_, err := ResolveUser(t.Context(), root, imagespec.ImageConfig{User: c.image}, c.sc)
		if !errors.Is(err, c.class) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want class %v saying %q", name, err, c.class, c.says)
		}
	}
}

// An image controls its own files, but must not make berth read other files of the node.
func TestResolveUserHostileImage(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, "victim:x:666:666::/:\n")
	user := func(root string) (User, error) {
		return ResolveUser(t.Context(), root, imagespec.ImageConfig{}, &runtimeapi.LinuxContainerSecurityContext{RunAsUsername: "victim"})
	}
	inRoot := func(t *testing.T, root string) {
		write(t, filepath.Join(root, secret), "victim:x:42:42::/:\n")
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, root string)
		uid     uint32 // 0: refused.
	}{
		"no files": {func(*testing.T, string) {}, 0},
		"absolute link to a file of the node": {func(t *testing.T, root string) {
			link(t, secret, filepath.Join(root, "etc/passwd"))
		}, 0},
		"absolute link with a target inside too": {func(t *testing.T, root string) {
			inRoot(t, root)
			link(t, secret, filepath.Join(root, "etc/passwd"))
		}, 42},
		"relative link out of the root": {func(t *testing.T, root string) {
			link(t, strings.Repeat("../", 40)+secret, filepath.Join(root, "etc/passwd"))
		}, 0},
		"relative link with a target inside too": {func(t *testing.T, root string) {
			inRoot(t, root)
			link(t, strings.Repeat("../", 40)+secret, filepath.Join(root, "etc/passwd"))
		}, 42},
		"etc is a link to a directory of the node": {func(t *testing.T, root string) {
			test.Must(t, os.Rename(secret, filepath.Join(filepath.Dir(secret), "passwd")))
			t.Cleanup(func() { write(t, secret, "victim:x:666:666::/:\n") })
			link(t, filepath.Dir(secret), filepath.Join(root, "etc"))
		}, 0},
		"link to itself": {func(t *testing.T, root string) { link(t, "/etc/passwd", filepath.Join(root, "etc/passwd")) }, 0},
		"magic link": {func(t *testing.T, root string) {
			link(t, "/proc/self/root"+secret, filepath.Join(root, "etc/passwd"))
		}, 0},
		"FIFO": {func(t *testing.T, root string) {
			write(t, filepath.Join(root, "etc/x"), "")
			test.Must(t, unix.Mkfifo(filepath.Join(root, "etc/passwd"), 0o644))
		}, 0},
		"device": {func(t *testing.T, root string) {
			write(t, filepath.Join(root, "etc/x"), "")
			test.Must(t, unix.Mknod(filepath.Join(root, "etc/passwd"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 5))))
		}, 0},
		"directory":     {func(t *testing.T, root string) { write(t, filepath.Join(root, "etc/passwd/x"), "") }, 0},
		"etc is a file": {func(t *testing.T, root string) { write(t, filepath.Join(root, "etc"), "") }, 0},
		"endless line": {func(t *testing.T, root string) {
			write(t, filepath.Join(root, "etc/passwd"), strings.Repeat("x", 2*maxLine)+"\nvictim:x:42:42::/:\n")
		}, 0},
		"entry after the part that is read": {func(t *testing.T, root string) {
			write(t, filepath.Join(root, "etc/passwd"), strings.Repeat(strings.Repeat("x", 1023)+"\n", maxDatabase/1024)+"victim:x:42:42::/:\n")
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "rootfs")
			test.Must(t, os.MkdirAll(root, 0o755))
			c.prepare(t, root)
			done := make(chan struct{})
			var got User
			var err error
			go func() { defer close(done); got, err = user(root) }()
			select {
			case <-done:
			case <-time.After(10 * time.Second):
				t.Fatal("resolving hangs")
			}
			if c.uid == 0 && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("got %+v, %v, want FailedPrecondition", got, err)
			}
			if c.uid != 0 && (err != nil || got.UID != c.uid) {
				t.Errorf("got %+v, %v, want uid %d", got, err, c.uid)
			}
		})
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	test.Must(t, os.Symlink(target, path))
}

// Images without a user database (FROM scratch) are valid.
func TestResolveUserWithoutFiles(t *testing.T) {
	root := t.TempDir()
	for image, want := range map[string]User{"": {}, "65532:65532": {UID: 65532, GID: 65532}, "1000": {UID: 1000}} {
		got, err := ResolveUser(t.Context(), root, imagespec.ImageConfig{User: image}, nil)
		if err != nil || got.UID != want.UID || got.GID != want.GID || !slices.Equal(got.AdditionalGids, []uint32{want.GID}) {
			t.Errorf("%q: got %+v, %v, want %+v", image, got, err, want)
		}
	}
}

// A line of a group may have any number of members, and an image any number of groups.
func TestResolveUserReadsEachMemberOnce(t *testing.T) {
	var members strings.Builder
	for i := range 120_000 {
		fmt.Fprintf(&members, "m%d,", i)
	}
	root := t.TempDir()
	must := func(err error) {
		test.Must(t, err)
	}
	must(os.Mkdir(filepath.Join(root, "etc"), 0o755))
	must(os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("app:x:7:7::/:"), 0o600))
	line := "g:x:%d:" + members.String() + "app\n"
	file := ""
	for gid := range 16 {
		file += fmt.Sprintf(line, 100+gid)
	}
	must(os.WriteFile(filepath.Join(root, "etc/group"), []byte(file), 0o600))
	// Comparing each member with all members before it took minutes of processor time.
	before := processorTime(t)
	u, err := ResolveUser(t.Context(), root, imagespec.ImageConfig{User: "app"}, nil)
	if err != nil || len(u.AdditionalGids) != 17 {
		t.Errorf("%d groups, %v", len(u.AdditionalGids), err)
	}
	if took := processorTime(t) - before; took > 20*time.Second {
		t.Errorf("ResolveUser took %v of processor time", took)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, test.Err(ResolveUser(gone, root, imagespec.ImageConfig{User: "app"}, nil)), context.Canceled, "with an ended context")
	must(os.WriteFile(filepath.Join(root, "etc/group"), []byte(strings.Repeat("g::1:app\n", maxGroups+1)), 0o600))
	test.Is(t, test.Err(ResolveUser(t.Context(), root, imagespec.ImageConfig{User: "app"}, nil)), errdefs.IsFailedPrecondition, "more groups than the kernel allows")
}

// processorTime returns the time that this process has used so far.
func processorTime(t *testing.T) time.Duration {
	var r unix.Rusage
	test.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &r))
	return time.Duration(r.Utime.Nano())
}

func FuzzUserDatabase(f *testing.F) {
	f.Add(imagePasswd)
	f.Add(imageGroup)
	f.Add("a:b:-1:0x7:c")
	f.Add("a::2147483648:1")
	f.Fuzz(func(t *testing.T, content string) {
		_ = eachLine(strings.NewReader(content), func(line string) bool {
			e, ok := parsePasswd(line)
			if ok && (e.name == "" || e.uid > 1<<31-1 || e.gid > 1<<31-1) {
				t.Errorf("found %+v", e)
			}
			// A UID is zero only if the line has a zero.
			if ok && e.uid == 0 && !strings.Contains(line, "0") {
				t.Errorf("root from a line without a zero: %+v", e)
			}
			g, ok := parseGroup(line)
			if ok && (g.name == "" || g.gid > 1<<31-1 || g.has("")) {
				t.Errorf("group %+v", g)
			}
			return true
		})
	})
}

func TestLongLineIsNamed(t *testing.T) {
	test.Says(t, eachLine(strings.NewReader("a:x:1:\nb:x:2:"+strings.Repeat("u,", maxLine)), func(string) bool { return true }), "line 2")
}
