// Package vm runs tests in virtual machines that are whole nodes (integration/vm/machine): tests of
// other packages, and those of integration/vm/inside. Each test in a machine is a subtest of a test
// of this package.
package vm

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/inside"
	"github.com/berth-cri/berth/integration/vm/machine"
)

const (
	// place is the directory of programs in a machine.
	place = "/b"
	// bound limits one run of tests in a machine, in the time of a host that is not emulated.
	bound = 5 * time.Minute
)

// The cgroup drivers of berth.
const (
	systemd  = "systemd"
	cgroupfs = "cgroupfs"
)

// programs are the programs of berth.
var programs = []string{"berth", "berth-shim", "berth-pause"}

// compiled builds the tests of a package for a machine, once.
func compiled(t *testing.T, pkg, tags string) string {
	t.Helper()
	return compiledFor(t, runtime.GOARCH, pkg, tags)
}

// compiledFor is compiled for a given architecture.
func compiledFor(t *testing.T, architecture, pkg, tags string) string {
	t.Helper()
	once, _ := binaries.LoadOrStore(architecture+pkg, sync.OnceValues(func() (string, error) {
		root, err := testbed.Repository()
		if err != nil {
			return "", err
		}
		path := filepath.Join(root, "bin", "vm-tests", architecture, filepath.Base(pkg)+".test")
		c := exec.Command("go", "test", "-c", "-trimpath", "-tags", "grpcnotrace,"+tags, "-ldflags=-s -w", "-o", path, "./"+pkg)
		c.Dir = root
		c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH="+architecture)
		if out, err := c.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build the tests of %s: %w\n%s", pkg, err, out)
		}
		return path, nil
	}))
	path, err := once.(func() (string, error))()
	testbed.Must(t, err)
	return path
}

// binaries has the builds of compiledFor, one for each architecture and package.
var binaries sync.Map

// boot starts a machine.
func boot(t *testing.T) *machine.Machine {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		testbed.Missing(t, "machines run only on amd64")
	}
	begin := time.Now()
	m := machine.Start(t, machine.Options{})
	t.Logf("the machine was ready after %.1f s, and is %.1f times slower than a host", time.Since(begin).Seconds(), m.Slowness)
	return m
}

// bring copies berth's programs and these parts of the testbed to a machine.
func bring(t *testing.T, m *machine.Machine, parts ...string) {
	t.Helper()
	bin := testbed.Built(t)
	for _, name := range programs {
		m.Put(t, filepath.Join(bin, name), filepath.Join(place, name))
	}
	for _, part := range parts {
		bringPart(t, m, part)
	}
}

func bringPart(t *testing.T, m *machine.Machine, part string) {
	t.Helper()
	path := testbed.Part(t, part)
	m.Put(t, path, filepath.Join(place, part))
	if part == testbed.Runsc {
		for _, file := range testbed.CompanionsOfRunsc(t, filepath.Dir(path)) {
			m.Put(t, file, filepath.Join(place, "gvisor-bin", filepath.Base(file)))
		}
	}
}

// environment returns the variables that name the testbed's parts in a machine.
func environment(more ...string) []string {
	return append([]string{
		"BERTH_TEST_BIN=" + place,
		"BERTH_TEST_RUNC=" + filepath.Join(place, testbed.Runc),
		"BERTH_TEST_RUNSC=" + filepath.Join(place, testbed.Runsc),
		"BERTH_TEST_SHIM=" + filepath.Join(place, testbed.RuncShim),
		"BERTH_TEST_CRUN=/usr/bin/crun", "BERTH_TEST_BUSYBOX=/bin/busybox", "BERTH_TEST_CRIU=/usr/sbin/criu",
	}, more...)
}

// groups returns the pattern of -test.run for groups of the conformance suite under handlers.
func groups(handlers string, groups ...string) string {
	return fmt.Sprintf("^TestBerth$/^(%s)$/^(%s)$", handlers, strings.Join(groups, "|"))
}

// repository returns the directory of berth's source.
func repository(t *testing.T) string {
	t.Helper()
	root, err := testbed.Repository()
	testbed.Must(t, err)
	return root
}

// deb builds the Debian package of a source for the host's architecture.
func deb(t *testing.T, source, version string) string {
	t.Helper()
	bin := t.TempDir() // not ./bin, whose programs other tests run
	testbed.Must(t, os.Symlink(filepath.Join(repository(t), "bin", "nfpm"), filepath.Join(bin, "nfpm")))
	return packageOf(t, source, "deb", "VERSION="+version, "BIN="+bin, "NATIVE="+bin)
}

// before returns the source of the previous version: the commit in BERTH_TEST_BEFORE, or this
// source if that is empty.
func before(t *testing.T) string {
	t.Helper()
	root, commit := repository(t), os.Getenv("BERTH_TEST_BEFORE")
	if commit == "" {
		return root
	}
	dir := t.TempDir()
	c := exec.CommandContext(t.Context(), "sh", "-ec", `git archive --format=tar "$1" >"$2.tar"; tar -xf "$2.tar" -C "$2"; rm "$2.tar"`, "sh", commit, dir)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("get the source of BERTH_TEST_BEFORE=%s: %v\n%s", commit, err, out)
	}
	return dir
}

// packageOf builds a target of the Makefile, and returns the package.
func packageOf(t *testing.T, source, target string, arguments ...string) string {
	t.Helper()
	out := t.TempDir()
	c := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory", target, "OUT=" + out}, arguments...)...)
	c.Dir = source
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v\n%s", target, err, text)
	}
	files, err := filepath.Glob(filepath.Join(out, "berth_*.deb"))
	if err != nil || len(files) != 1 {
		t.Fatalf("make built the packages %v, %v, want one", files, err)
	}
	return files[0]
}

// cut runs a test of integration/vm/inside, and cuts the power once it has printed inside.Held.
func cut(t *testing.T, m *machine.Machine, name string) {
	t.Helper()
	said, out := io.Pipe()
	c := m.Command(place+"/inside.test", "-test.v", "-test.run=^"+name+"$", "-test.timeout="+m.Scaled(bound).String())
	c.Env, c.Stdout, c.Stderr = append(m.Environment(), environment()...), out, out
	ended := make(chan error, 1)
	go func() { ended <- errors.Join(c.Run(t.Context()), out.Close()) }()
	lines := bufio.NewScanner(said)
	for lines.Scan() {
		t.Log(lines.Text())
		if lines.Text() == inside.Held {
			m.Cut(t)
			go io.Copy(io.Discard, said) //nolint:errcheck // until the cut ends it
			if <-ended == nil {
				t.Error("the test in the machine succeeded in spite of the power cut")
			}
			return
		}
	}
	t.Fatalf("the test ended before the power was cut: %v", <-ended)
}

// within runs these tests of integration/vm/inside in a machine, in this order.
func within(t *testing.T, m *machine.Machine, names ...string) {
	t.Helper()
	m.Put(t, compiledFor(t, m.Architecture(), "integration/vm/inside", "berth_vm"), place+"/inside.test")
	for _, name := range names {
		m.Test(t, machine.Tests{Binary: place + "/inside.test", Run: "^" + name + "$", Timeout: bound, Env: environment()})
	}
}

// conforms runs checks of the conformance suite in a machine, with a cgroup driver.
func conforms(t *testing.T, m *machine.Machine, driver, checks string) {
	t.Helper()
	bring(t, m, testbed.Runc, testbed.Runsc, testbed.RuncShim)
	m.Put(t, compiled(t, "integration/conformance", ""), place+"/conformance.test")
	m.Test(t, machine.Tests{
		Binary: place + "/conformance.test", Run: checks, Timeout: bound,
		Env: environment("BERTH_TEST_CGROUP_DRIVER="+driver, "BERTH_TEST_GROUPS=all"),
	})
}
