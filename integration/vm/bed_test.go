// Package vm runs tests in whole nodes (integration/vm/machine): those of other
// packages, and its own of integration/vm/inside. Every test that runs in a machine is
// one of this package, with its name below that of the test here.
package vm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

// place is where programs are in a machine.
const place = "/b"

// programs are berth's.
var programs = []string{"berth", "berth-shim", "berth-pause", "berth-runtimeclass"}

// compiled builds the tests of a package for a machine, once.
func compiled(t *testing.T, pkg, tags string) string {
	t.Helper()
	once, _ := binaries.LoadOrStore(pkg, sync.OnceValues(func() (string, error) {
		root, err := testbed.Repository()
		if err != nil {
			return "", err
		}
		path := filepath.Join(root, "bin", "vm-tests", filepath.Base(pkg)+".test")
		c := exec.Command("go", "test", "-c", "-trimpath", "-tags", tags, "-ldflags=-s -w", "-o", path, "./"+pkg)
		c.Dir = root
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, out)
		}
		return path, nil
	}))
	path, err := once.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// binaries are built once for each package.
var binaries sync.Map

// boot gives a machine.
func boot(t *testing.T) *machine.Machine {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		testbed.Missing(t, "machines are emulated for amd64")
	}
	begin := time.Now()
	m := machine.Start(t, machine.Options{})
	t.Logf("the machine was ready after %.1f s, and is %.1f times slower than a host", time.Since(begin).Seconds(), m.Slowness)
	return m
}

// bring puts berth's programs and the runtimes of tests into a machine.
func bring(t *testing.T, m *machine.Machine, parts ...string) {
	t.Helper()
	bin := testbed.Built(t)
	for _, name := range programs {
		m.Put(t, filepath.Join(bin, name), filepath.Join(place, name))
	}
	for _, part := range parts {
		m.Put(t, testbed.Part(t, part), filepath.Join(place, part))
	}
}

// environment names the parts of tests in a machine.
func environment(more ...string) []string {
	return append([]string{
		"BERTH_TEST_BIN=" + place,
		"BERTH_TEST_RUNC=" + filepath.Join(place, testbed.Runc),
		"BERTH_TEST_RUNSC=" + filepath.Join(place, testbed.Runsc),
		"BERTH_TEST_SHIM=" + filepath.Join(place, testbed.RuncShim),
		"BERTH_TEST_CRUN=/usr/bin/crun", "BERTH_TEST_BUSYBOX=/bin/busybox", "BERTH_TEST_CRIU=/usr/sbin/criu",
	}, more...)
}

// groups is the pattern of groups of the conformance suite.
func groups(handlers string, groups ...string) string {
	return fmt.Sprintf("^TestBerth$/^(%s)$/^(%s)$", handlers, strings.Join(groups, "|"))
}

// deb builds berth's package.
func deb(t *testing.T, version string) string {
	t.Helper()
	root, err := testbed.Repository()
	if err != nil {
		t.Fatal(err)
	}
	out, bin := t.TempDir(), t.TempDir()
	// Other tests run what is in ./bin.
	if err := os.Symlink(filepath.Join(root, "bin", "nfpm"), filepath.Join(bin, "nfpm")); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "make", "--no-print-directory", "deb", "VERSION="+version, "OUT="+out, "BIN="+bin)
	c.Dir = root
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make deb: %v\n%s", err, text)
	}
	files, err := filepath.Glob(filepath.Join(out, "berth_*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("packages: %v, %v", files, err)
	}
	return files[0]
}
