package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
)

// hasLine reports whether a file has a line.
func hasLine(t *testing.T, path, line string) bool {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Contains(string(text), "\n"+line+"\n")
}

// The file labels only the handlers that accept pods as ready. It is written once they do,
// and stays after the daemon has stopped.
func TestNodeLabels(t *testing.T) {
	const label = "feature.node.kubernetes.io/handler."
	b := newBed(t)
	path := filepath.Join(t.TempDir(), "berth")
	b.config.NodeLabels = config.NodeLabels{File: path, Lifetime: time.Hour}
	b.failing("Recover", "unreadable records")
	if err := b.daemon(t).Start(t.Context()); err == nil {
		t.Fatal("the daemon started although the recovery failed")
	}
	if exists(t, path) {
		t.Error("the file was written before handlers accept pods")
	}
	b.engine.Fail = nil

	d := b.started(t)
	has := func(line string, want bool) {
		t.Helper()
		test.Eventually(t, fmt.Sprintf("line %s in the file: %v", line, want), func() bool { return hasLine(t, path, label+line) == want })
	}
	for line, want := range map[string]bool{
		"runc=ready": true, "gvisor=ready": true, "kata=ready": false, "kata.state=not-ready": true, "runc.state=ready": true,
	} {
		has(line, want)
	}
	test.Must(t, d.Lifecycle().Cordon(t.Context(), "runc", "a test", "uid 0"))
	has("runc=ready", false)
	has("runc.state=cordoned", true)
	has("gvisor=ready", true)
	for _, name := range []string{"runc", "gvisor", "kata"} {
		if !hasLine(t, path+"-present", label+name+".present=true") {
			t.Errorf("the file lacks the label present of %s", name)
		}
	}
	test.Must(t, d.Stop(t.Context()))
	has("gvisor=ready", true)

	// Without the key there is no file.
	b.config.NodeLabels.File = ""
	test.Must(t, os.Remove(path))
	b.started(t)
	if exists(t, path) {
		t.Error("the file was written although node_labels.file is empty")
	}
}
