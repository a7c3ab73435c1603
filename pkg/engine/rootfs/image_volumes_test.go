package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func TestImagePart(t *testing.T) {
	outside := t.TempDir()
	root := filepath.Join(t.TempDir(), "root")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(root, "data", "deep"), 0o755),
		os.WriteFile(filepath.Join(root, "file"), nil, 0o600),
		os.Symlink("data/deep", filepath.Join(root, "link")),
		os.Symlink("/data", filepath.Join(root, "absolute")),
		os.Symlink(outside, filepath.Join(root, "away")),
		os.Symlink("../../../../../../"+outside, filepath.Join(root, "climbing")),
		os.Symlink("loop", filepath.Join(root, "loop")),
	} {
		test.Must(t, err)
	}
	for sub, want := range map[string]string{
		"": "", "data": "data", "data/deep/": "data/deep", "link": "data/deep", "absolute/deep": "data/deep", "data/../data": "data",
	} {
		got, err := imagePart(root, sub, false)
		if err != nil || filepath.Clean(got) != filepath.Join(root, want) {
			t.Errorf("%q: %s, %v, want %s", sub, got, err, filepath.Join(root, want))
		}
	}
	test.Equal(t, "a file", test.Value(imagePart(root, "file", true))(t), filepath.Join(root, "file"))
	test.Equal(t, "a directory where files can be mounted too", test.Value(imagePart(root, "data", true))(t), filepath.Join(root, "data"))
	for _, sub := range []string{"none", "file", "file/below", "away", "climbing", "loop"} {
		if got, err := imagePart(root, sub, false); err == nil {
			t.Errorf("%q: %s, want an error", sub, got)
		} else if sub != "loop" && sub != "file/below" && !errors.Is(err, errdefs.ErrInvalidArgument) {
			t.Errorf("%q: %v, want ErrInvalidArgument", sub, err)
		}
	}
}
