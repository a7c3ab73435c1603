package shim

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
)

func TestSocketOf(t *testing.T) {
	for _, c := range []struct {
		address  string
		file     bool
		path     string
		abstract bool
	}{
		{"unix:///run/berth/s/abc", true, "/run/berth/s/abc", false},
		{"unix:///run/berth/s/abc", false, "/run/berth/s/abc", false}, // its shim is gone
		{"/containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"unix:///containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"unix:///containerd-shim/abc.sock", true, "/containerd-shim/abc.sock", false},
		{"/run/shim.sock", true, "/run/shim.sock", false},
		{"/run/shim.sock", false, "/run/shim.sock", true},
		{"unix://@/containerd-shim/abc.sock", false, "/containerd-shim/abc.sock", true},
		{"@/abc", false, "/abc", true},
	} {
		path, abstract := socketOf(c.address, func(string) bool { return c.file })
		if path != c.path || abstract != c.abstract {
			t.Errorf("%s (file %v): %s, abstract %v", c.address, c.file, path, abstract)
		}
	}
}

func TestDialForeign(t *testing.T) {
	abstract := fmt.Sprintf("/containerd-shim/berth-test-%d.sock", os.Getpid())
	file := filepath.Join(t.TempDir(), "s")
	for address, socket := range map[string]string{abstract: "\x00" + abstract, "unix://" + file: file, file: file} {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				_, _ = io.WriteString(c, "x")
				_ = c.Close()
			}
		}()
		c, err := dialForeign(address)
		if err != nil {
			t.Fatalf("%s: %v", address, err)
		}
		if text, err := io.ReadAll(c); string(text) != "x" || err != nil {
			t.Errorf("%s: %q, %v", address, text, err)
		}
		_, _ = c.Close(), l.Close()
		if _, err := dialForeign(address); !nobodyListens(err) {
			t.Errorf("%s when nobody listens: %v", address, err)
		}
	}
}
