package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestRunsShimOf(t *testing.T) {
	for line, want := range map[string]bool{
		"/bin/shim\x00-namespace\x00berth\x00-id\x00abc\x00-address\x00/run/x\x00": true,
		"/bin/shim\x00-namespace\x00berth\x00-id\x00abc\x00start\x00":              true,
		"/bin/shim\x00-namespace\x00berth\x00-id\x00abc\x00delete\x00":             false,
		"/bin/shim\x00-namespace\x00berth\x00-id\x00abcd\x00":                      false,
		"qemu\x00-name\x00sandbox-abc\x00":                                         false,
		"":                                                                         false,
	} {
		test.Equal(t, fmt.Sprintf("%q", line), runsShimOf("abc", []byte(line)), want)
	}
}

// A state directory may be reached over a link, as /var/run is.
func TestStrayInABundleBehindALink(t *testing.T) {
	dir := t.TempDir()
	bundle, link := filepath.Join(dir, "bundle"), filepath.Join(dir, "link")
	test.Must(t, os.Mkdir(bundle, 0o700))
	test.Must(t, os.Symlink(bundle, link))
	stray := exec.Command("sh", "-c", "read line", "shim", "-id", "abc", "serve")
	stray.Dir = bundle
	if _, err := stray.StdinPipe(); err != nil { // nothing is written to it
		t.Fatal(err)
	}
	test.Must(t, stray.Start())
	ended := make(chan error, 1)
	go func() { ended <- stray.Wait() }()
	test.Must(t, killStray(Start{ID: "other", Bundle: link}))
	test.Must(t, killStray(Start{ID: "abc", Bundle: link}))
	if err := <-ended; err == nil || err.Error() != "signal: killed" {
		t.Errorf("the stray ended with %v", err)
	}
}
