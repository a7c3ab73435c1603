package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/config/tomlfile"
)

// node is a machine with its own configuration directories and runtimes. write
// replaces $BIN by the directory of runtimes.
type node struct {
	t *testing.T
	// dir holds config.toml, conf.d, vendor and bin.
	dir string
}

func newNode(t *testing.T, runtimes ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir()}
	for _, d := range []string{"conf.d", "vendor", "bin"} {
		test.Must(t, os.Mkdir(filepath.Join(n.dir, d), 0o755))
	}
	for _, r := range runtimes {
		n.binary("bin/"+r, 0o755)
	}
	return n
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) binary(name string, mode os.FileMode) {
	n.t.Helper()
	n.raw(name, "#!/bin/sh\nexit 0\n", mode)
}

func (n *node) raw(name, content string, mode os.FileMode) {
	n.t.Helper()
	file := n.path(name)
	test.Must(n.t, os.MkdirAll(filepath.Dir(file), 0o755))
	test.Must(n.t, os.WriteFile(file, []byte(content), 0o600))
	// The umask must not decide what a test sees.
	test.Must(n.t, os.Chmod(file, mode))
}

func (n *node) write(name, content string) {
	n.t.Helper()
	n.raw(name, strings.ReplaceAll(content, "$BIN", n.path("bin")), 0o644)
}

func (n *node) options() Options {
	return Options{File: n.path("config.toml"), VendorDir: n.path("vendor"), SearchPath: []string{n.path("bin")}}
}

func (n *node) load() *Config {
	n.t.Helper()
	cfg, err := Load(n.options())
	test.Mustf(n.t, err, "Load")
	return cfg
}

// refuse loads, expects Problems and returns their lines with $DIR for the
// node's directory.
func (n *node) refuse(o Options) []string {
	n.t.Helper()
	cfg, err := Load(o)
	var problems Problems
	if !errors.As(err, &problems) || cfg != nil {
		n.t.Fatalf("Load = %v, %v; want Problems", cfg, err)
	}
	var lines []string
	for _, p := range problems {
		lines = append(lines, n.relative(p.Error()))
	}
	return lines
}

// lacks returns one line for each thing that the machine lacks for the handlers of cfg. A line
// begins with the place of the key.
func (n *node) lacks(cfg *Config) []string {
	var lines []string
	for _, d := range cfg.Runtimes {
		for _, l := range hostfiles.Lacks(d) {
			key := tomlfile.Under("runtimes", d.Name) + "." + l.Key
			lines = append(lines, n.relative(Problem{Origin: cfg.Origin(key), Key: key, Message: l.Message}.Error()))
		}
	}
	return lines
}

func (n *node) relative(s string) string { return strings.ReplaceAll(s, n.dir, "$DIR") }

func names(cfg *Config) string {
	var s []string
	for _, d := range cfg.Runtimes {
		s = append(s, d.Name)
	}
	return strings.Join(s, " ")
}

func brokenNames(cfg *Config) string {
	var s []string
	for _, b := range cfg.Broken {
		s = append(s, b.Name)
	}
	return strings.Join(s, " ")
}
