package pod

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const stranger = 12345

// TestChangeablePinnedFiles has files that became another's after the daemon had
// loaded its configuration.
func TestChangeablePinnedFiles(t *testing.T) {
	file := put(t, filepath.Join(t.TempDir(), "base.json"), "{}")
	if _, err := ReadText(file); err != nil {
		t.Fatal(err)
	}
	test.Must(t, os.Chown(file, stranger, stranger))
	if _, err := ReadText(file); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "chown root") {
		t.Errorf("got %v", err)
	}
	if _, err := ReadText(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one that is not there: %v", err)
	}
}

func put(t *testing.T, path, content string) string {
	t.Helper()
	test.Must(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
