package config

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/handler"
)

// A missing socket is accepted, since its daemon creates it. A file or directory in its place is
// a mistake.
func TestEndpointsOnThisMachine(t *testing.T) {
	dir := t.TempDir()
	file, socket := filepath.Join(dir, "file"), filepath.Join(dir, "cri.sock")
	test.Must(t, os.WriteFile(file, nil, 0o600))
	l := test.Value(net.Listen("unix", socket))(t)
	defer l.Close()
	for path, want := range map[string]string{
		socket: "", filepath.Join(dir, "missing"): "", file: "endpoint: " + file + " is a file, not a socket", dir: "endpoint: " + dir + " is a directory, not a socket",
	} {
		got := ""
		if err := hostfiles.Lacking(&handler.Definition{Type: handler.CRI, Endpoint: path}); err != nil {
			got = err.Error()
		}
		if got != want && !strings.HasPrefix(got, want+";") {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
