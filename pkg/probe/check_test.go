package probe

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckSaysWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	path, _ := replay(t, dir, "runc-1.5.2")
	c := NewChecker(New())
	whole := oci(path)
	whole.RequiredDevices = []string{"/dev/null"}
	if rt, err := c.Check(t.Context(), whole); err != nil || rt.Version != "1.5.2" {
		t.Fatalf("got %v, %v", rt, err)
	}
	for _, device := range []string{filepath.Join(dir, "none"), path} {
		d := oci(path)
		d.RequiredDevices = []string{device}
		if rt, err := c.Check(t.Context(), d); err == nil || rt != nil || !strings.Contains(err.Error(), "required_devices: "+device) {
			t.Errorf("%s: got %v, %v", device, rt, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Check(t.Context(), whole); err == nil || !strings.Contains(err.Error(), "runtime_path: "+path+" does not exist") {
		t.Errorf("without its binary: %v", err)
	}
	replay(t, dir, "runc-1.5.2")
	if _, err := c.Check(t.Context(), whole); err != nil {
		t.Errorf("with the binary back: %v", err)
	}
}
