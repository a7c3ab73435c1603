package checkpoint

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metadata "github.com/checkpoint-restore/checkpointctl/lib"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

// unpackedFiles writes the files that every archive has, and more.
func unpackedFiles(t *testing.T, more map[string]string) string {
	t.Helper()
	all := map[string]string{
		metadata.ConfigDumpFile: `{"name":"main","rootfsImageRef":"x@sha256:1"}`, metadata.SpecDumpFile: `{"process":{"args":["a"]}}`,
		"checkpoint/descriptors.json": `["/dev/null","pipe:[1]","pipe:[2]"]`, "checkpoint/pages-1.img": "memory",
	}
	for name, text := range more {
		all[name] = text
	}
	dir := t.TempDir()
	for name, text := range all {
		path := filepath.Join(dir, name)
		test.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		if text != "" {
			test.Must(t, os.WriteFile(path, []byte(text), 0o600))
		}
	}
	return dir
}

func TestUnpack(t *testing.T) {
	dir := unpackedFiles(t, nil)
	u := test.Value(Unpack(dir))(t)
	if u.Config.Name != "main" || u.Config.RootfsImageRef != "x@sha256:1" || !slices.Equal(u.Spec.Process.Args, []string{"a"}) {
		t.Errorf("config %+v, spec %+v", u.Config, u.Spec)
	}
	to := filepath.Join(t.TempDir(), "a", "b")
	test.Must(t, u.Images(t.Context(), to))
	test.Equal(t, "copied", test.File(t, filepath.Join(to, "pages-1.img")), "memory")
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory is %v, %v", info, err)
	}
	if left, _ := os.ReadDir(to); len(left) != 2 {
		t.Errorf("the copied files are %v", left)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	test.ErrorIs(t, u.Images(ctx, t.TempDir()), context.Canceled, "cancelled")
}

func TestImagesWithoutRoom(t *testing.T) {
	dir := unpackedFiles(t, nil)
	sparse := test.Value(os.Create(filepath.Join(dir, "checkpoint", "pages-2.img")))(t)
	test.Must(t, sparse.Close())
	if err := os.Truncate(sparse.Name(), 1<<43); err != nil {
		t.Skipf("the file system of the test has no sparse files of that size: %v", err)
	}
	u := test.Value(Unpack(dir))(t)
	to := t.TempDir()
	test.Is(t, u.Images(t.Context(), to), errdefs.IsResourceExhausted, "copying a file larger than the disk")
	if left, _ := os.ReadDir(to); len(left) > 0 {
		t.Errorf("the copied files are %v", left)
	}
}

func TestNoArchive(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "shadow")
	test.Must(t, os.WriteFile(secret, []byte("{}"), 0o600))
	for name, change := range map[string]func(dir string) error{
		"empty":          func(dir string) error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
		"no spec":        func(dir string) error { return os.Remove(filepath.Join(dir, metadata.SpecDumpFile)) },
		"spec is a link": func(dir string) error { return relink(secret, filepath.Join(dir, metadata.SpecDumpFile)) },
		"images directory is a link": func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "checkpoint"), dir+"2"), os.Symlink(dir+"2", filepath.Join(dir, "checkpoint")))
		},
		"spec is a pipe": func(dir string) error {
			file := filepath.Join(dir, metadata.SpecDumpFile)
			return errors.Join(os.Remove(file), unix.Mkfifo(file, 0o600))
		},
		"config too large": func(dir string) error { return os.Truncate(filepath.Join(dir, metadata.ConfigDumpFile), maxDocument+1) },
		"too many streams": func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "checkpoint", "descriptors.json"), []byte(`["","","","pipe:[4]"]`), 0o600)
		},
	} {
		dir := unpackedFiles(t, nil)
		test.Must(t, change(dir))
		u, err := Unpack(dir)
		if !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, %v", name, u, err)
		}
	}
	for name, change := range map[string]func(dir string) error{
		"a link":      func(dir string) error { return os.Symlink(secret, filepath.Join(dir, "x.img")) },
		"a hard link": func(dir string) error { return os.Link(filepath.Join(dir, "pages-1.img"), filepath.Join(dir, "x.img")) },
		"a directory": func(dir string) error { return os.Mkdir(filepath.Join(dir, "x.img"), 0o700) },
		"a pipe":      func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "x.img"), 0o600) },
	} {
		dir := unpackedFiles(t, nil)
		u := test.Value(Unpack(dir))(t)
		test.Must(t, change(filepath.Join(dir, "checkpoint")))
		test.Is(t, u.Images(t.Context(), t.TempDir()), errdefs.IsInvalidArgument, "%s", name)
	}
}

func relink(to, name string) error { return errors.Join(os.Remove(name), os.Symlink(to, name)) }

func diff(t *testing.T, headers ...tar.Header) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		body := h.Linkname
		if h.Typeflag == tar.TypeReg {
			h.Linkname, h.Size = "", int64(len(body))
		}
		h.Mode, h.Uid, h.Gid, h.Format = 0o755, os.Getuid(), os.Getgid(), tar.FormatPAX
		test.Must(t, w.WriteHeader(&h))
		if h.Typeflag == tar.TypeReg {
			test.Must(t, test.Err(w.Write([]byte(body))))
		}
	}
	test.Must(t, w.Close())
	return out.String()
}

// TestApply applies the changes of a container to the files of its image.
func TestApply(t *testing.T) {
	rootfs := files(t, "etc/keep", "etc/gone", "dir/old", "dir/again", "was-file", "was-dir/x", "link-of-image/x", "usr/bin/sh")
	test.Must(t, os.RemoveAll(filepath.Join(rootfs, "link-of-image")))
	test.Must(t, os.Symlink("usr", filepath.Join(rootfs, "link-of-image")))
	u := test.Value(Unpack(unpackedFiles(t, map[string]string{
		metadata.RootFsDiffTar: diff(t,
			tar.Header{Typeflag: tar.TypeReg, Name: "new", Linkname: "new"},
			tar.Header{Typeflag: tar.TypeLink, Name: "again", Linkname: "new"},
			tar.Header{Typeflag: tar.TypeDir, Name: "was-file"},
			tar.Header{Typeflag: tar.TypeReg, Name: "was-dir", Linkname: "file"},
			tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "/etc/keep"},
			tar.Header{Typeflag: tar.TypeReg, Name: "dir/again", Linkname: "changed"},
			tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"},
		),
		// Apply keeps listed files that the diff has again, and files behind a link.
		metadata.DeletedFilesFile: `["etc/gone", "/dir/old", "dir/again", "none/x", "link-of-image/bin", "was-dir/x"]`,
	})))(t)
	test.Must(t, u.Apply(t.Context(), rootfs))
	for name, want := range map[string]string{"new": "new", "again": "new", "was-dir": "file", "dir/again": "changed", "etc/keep": "etc/keep", "usr/bin/sh": "usr/bin/sh"} {
		test.Equal(t, name, test.File(t, filepath.Join(rootfs, name)), want)
	}
	for _, name := range []string{"etc/gone", "dir/old"} {
		test.ErrorIs(t, test.Err(os.Lstat(filepath.Join(rootfs, name))), os.ErrNotExist, "%s", name)
	}
	test.Equal(t, "the target of link", test.Value(os.Readlink(filepath.Join(rootfs, "link")))(t), "/etc/keep")
	idle := test.Value(Unpack(unpackedFiles(t, nil)))(t)
	test.Must(t, idle.Apply(t.Context(), t.TempDir()))
}

func TestAdmit(t *testing.T) {
	up := strings.Repeat("../", 9)
	for name, c := range map[string]struct {
		h    tar.Header
		says string
	}{
		"file":                {tar.Header{Typeflag: tar.TypeReg, Name: "./a", Size: 10}, ""},
		"larger than allowed": {tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: 11}, "sparse"},
		"negative size":       {tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: -1}, "sparse"},
		"absolute":            {tar.Header{Typeflag: tar.TypeDir, Name: "/a/b"}, ""},
		"up":                  {tar.Header{Typeflag: tar.TypeDir, Name: "a/../" + up}, "leads out"},
		"absolute and up":     {tar.Header{Typeflag: tar.TypeDir, Name: "/" + up + "a"}, "leads out"},
		"symbolic link":       {tar.Header{Typeflag: tar.TypeSymlink, Name: "a", Linkname: up}, ""},
		"hard link":           {tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: "/b"}, ""},
		"hard link to above":  {tar.Header{Typeflag: tar.TypeLink, Name: "a", Linkname: up + "b"}, "leads out"},
		"device":              {tar.Header{Typeflag: tar.TypeChar, Name: "a"}, "device"},
		"block device":        {tar.Header{Typeflag: tar.TypeBlock, Name: "a"}, "device"},
		"sparse":              {tar.Header{Typeflag: tar.TypeGNUSparse, Name: "a"}, "type"},
		"pipe":                {tar.Header{Typeflag: tar.TypeFifo, Name: "a"}, ""},
	} {
		err := (&budget{bytes: 10, entries: 1}).admit(&c.h)
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	test.Fails(t, (&budget{bytes: 10}).admit(&tar.Header{Typeflag: tar.TypeDir, Name: "a"}), "more entries than allowed")
	h := tar.Header{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{
		xattrRecord + "user.a": "1", xattrRecord + "security.capability": "2", xattrRecord + "trusted.overlay.redirect": "3", xattrRecord + "security.selinux": "4", "path": "a",
	}}
	if err := (&budget{entries: 1}).admit(&h); err != nil || len(h.PAXRecords) != 3 {
		t.Errorf("attributes are %v, %v", h.PAXRecords, err)
	}
}

func TestFits(t *testing.T) {
	spaces := func(pid, net string) []specs.LinuxNamespace {
		return []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: pid}, {Type: specs.NetworkNamespace, Path: net}}
	}
	now := &specs.Spec{
		Process: &specs.Process{}, Mounts: []specs.Mount{{Destination: "/etc/hosts"}, {Destination: "/more"}},
		Linux: &specs.Linux{Namespaces: spaces("", "/n"), MaskedPaths: []string{"/proc/x"}},
	}
	for name, c := range map[string]struct {
		was  string
		says []string
	}{
		"the same":    {`{"mounts":[{"destination":"/etc/hosts","type":"bind"},{"destination":"/tmp","type":"tmpfs"}],"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/other"}],"maskedPaths":["/y"]}}`, nil},
		"a volume":    {`{"mounts":[{"destination":"/data","type":"none","options":["rbind"]}],"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/o"}]}}`, []string{`"/data"`}},
		"a terminal":  {`{"process":{"terminal":true},"linux":{"namespaces":[{"type":"pid"},{"type":"network","path":"/o"}]}}`, []string{"tty: true"}},
		"host's pids": {`{"linux":{"namespaces":[{"type":"network","path":"/o"}]}}`, []string{"another pid namespace"}},
		"many differences": {
			`{"mounts":[{"destination":"/data","type":"bind"}],"linux":{"namespaces":[{"type":"user"}]}}`,
			[]string{`"/data"`, "another pid namespace", "another network namespace", "user namespace"},
		},
	} {
		u := test.Value(Unpack(unpackedFiles(t, map[string]string{metadata.SpecDumpFile: c.was})))(t)
		err := u.Spec.Fits(now)
		if (err == nil) != (len(c.says) == 0) || err != nil && !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.says {
			if !strings.Contains(fmt.Sprint(err), text) {
				t.Errorf("%s: %v does not contain %q", name, err, text)
			}
		}
	}
	masked := &Spec{}
	masked.Linux.MaskedPaths = []string{"/proc/x"}
	test.Says(t, masked.Fits(&specs.Spec{}), "privileged: false")
}
