package images

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
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

func TestWholeFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	test.Must(t, writeComplete(path, func(w io.Writer) error { _, err := io.WriteString(w, "all of it"); return err }))
	failed := errors.New("cut off")
	err := writeComplete(path, func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return failed })
	test.Equal(t, "the unwrapped error of a failed write", err, failed)
	text, err := os.ReadFile(path)
	left, listed := os.ReadDir(dir)
	if err != nil || string(text) != "all of it" || listed != nil || len(left) != 1 {
		t.Errorf("the file contains %q, the directory %v: %v, %v", text, left, err, listed)
	}
}
