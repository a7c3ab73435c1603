package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestUnusedImages(t *testing.T) {
	images := []*runtimeapi.Image{
		{Id: "sha256:id", RepoTags: []string{"by-id:1"}}, {Id: "sha256:tag", RepoTags: []string{"by-tag:1", "and:2"}},
		{Id: "sha256:digest", RepoDigests: []string{"by@sha256:d"}}, {Id: "sha256:pinned", RepoTags: []string{"pinned:1"}, Pinned: true},
		{Id: "sha256:free", RepoTags: []string{"free:1"}}, {Id: "sha256:nameless"},
	}
	containers := []*runtimeapi.Container{
		{ImageId: "sha256:id", ImageRef: "sha256:id"}, {ImageRef: "by-tag:1"}, {Image: &runtimeapi.ImageSpec{Image: "by@sha256:d"}},
	}
	all := withUse(images, containers)
	var free []string
	for _, i := range unused(all) {
		free = append(free, i.names()[0])
	}
	test.Equal(t, "unused", strings.Join(free, " "), "<none> free:1")
	for _, i := range all {
		if want := map[bool]int{true: 1}[strings.HasPrefix(i.names()[0], "by") || i.names()[0] == "by-tag:1"]; i.Containers != want {
			t.Errorf("%s has %d containers", i.names()[0], i.Containers)
		}
	}
}

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 10: "10 KiB", 1536 << 10: "1.5 MiB", 66 << 20: "66 MiB", 3 << 40: "3.0 TiB", 5000 << 40: "5000 TiB"} {
		test.Equal(t, fmt.Sprintf("%d", n), size(n), want)
	}
}

func TestPullOfAnImage(t *testing.T) {
	pulls := []*adminv1.Pull{{Name: "docker.io/library/busybox:latest"}, {Name: "registry.example/team/app:1"}}
	for name, want := range map[string]int{
		"busybox": 0, "busybox:latest": 0, "library/busybox": 0, "docker.io/library/busybox:latest": 0, "docker.io/library/busybox": 0,
		"registry.example/team/app:1": 1, "box": -1, "busybox:1": -1, "": -1,
	} {
		got := pullOf(pulls, name)
		if want < 0 && got != nil || want >= 0 && got != pulls[want] {
			t.Errorf("%q is %v", name, got)
		}
	}
}

// Of layers that were unpacked after somebody looked for the last time, lines are missing
// otherwise, and bars look as if the pull had stopped half way.
func TestLayersThatCameLast(t *testing.T) {
	half := &adminv1.Pull{Layers: []*adminv1.PullLayer{
		{Digest: "sha256:first", Size: 1 << 20, Fetched: 1 << 20, Stage: "unpacked"},
		{Digest: "sha256:second", Size: 2 << 20, Fetched: 1 << 20, Stage: "fetching"},
	}}
	views := map[string]func(io.Writer) pullView{
		"lines": func(to io.Writer) pullView { return &pullLines{to: to, told: map[string]bool{}} },
		"bars":  func(to io.Writer) pullView { return newPullBars(to, 100) },
	}
	for name, view := range views {
		t.Run(name, func(t *testing.T) {
			for pulled, want := range map[bool]string{true: "second unpacked", false: "first unpacked"} {
				var shown bytes.Buffer
				v := view(&shown)
				v.now(half)
				v.now(half)
				v.end(pulled)
				if !strings.Contains(shown.String(), want) || strings.Contains(shown.String(), "second unpacked") != pulled {
					t.Errorf("pulled is %v, shown %q", pulled, &shown)
				}
			}
		})
	}
	(&pullLines{}).end(true)
}

func TestCredentialsOfAPull(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	test.Must(t, os.WriteFile(file, []byte("me:secret:with-colon\n"), 0o600))
	for _, from := range []string{file, "-"} {
		got, err := readCredentials(from, strings.NewReader("me:secret:with-colon"))
		if err != nil || got.GetUsername() != "me" || got.GetPassword() != "secret:with-colon" {
			t.Errorf("from %s: %v, %v", from, got, err)
		}
	}
	if got, err := readCredentials("", nil); got != nil || err != nil {
		t.Errorf("none: %v, %v", got, err)
	}
	for _, text := range []string{"", "nobody", ":secret"} {
		if _, err := readCredentials("-", strings.NewReader(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("of %q: %v", text, err)
		}
	}
}

func TestWholeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	test.Must(t, whole(path, func(w io.Writer) error { _, err := io.WriteString(w, "all of it"); return err }))
	failed := errors.New("cut off")
	err := whole(path, func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return failed })
	test.Equal(t, "the error of a write that fails, as it is for who reads its class", err, failed)
	text, err := os.ReadFile(path)
	left, listed := os.ReadDir(dir)
	if err != nil || string(text) != "all of it" || listed != nil || len(left) != 1 {
		t.Errorf("there is %q in %v: %v, %v", text, left, err, listed)
	}
}
