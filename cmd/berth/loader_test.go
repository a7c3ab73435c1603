package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
)

// An accepted configuration that cannot be stored is a fault until it is stored. Until then no
// older one is kept, and a start with a mistake in the files fails.
func TestAnAcceptedConfigurationThatCannotBeKeptIsAFault(t *testing.T) {
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		test.Must(t, err)
	}
	file := filepath.Join(dir, "config.toml")
	must(os.WriteFile(file, nil, 0o600))
	o := config.Options{File: file, VendorDir: filepath.Join(dir, "vendor"), Flags: map[string]string{"engine.root": dir}}
	start, err := config.Start(o)
	must(err)
	l := newLoader(o, start)
	inForce := func(want string) {
		t.Helper()
		cfg, err := l.Load(t.Context())
		must(err)
		l.InForce(t.Context(), cfg)
		got := strings.Join(l.Faults(), "\n")
		if (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("the faults are %q", got)
		}
	}
	if got := l.Faults(); len(got) > 0 {
		t.Errorf("before the first configuration is in force, the faults are %q", got)
	}
	inForce("")
	blocked := filepath.Join(dir, "accepted-config", "."+filepath.Base(o.AcceptedFile())+".new")
	must(os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
	must(os.WriteFile(file, []byte("[log]\nlevel = \"debug\"\n"), 0o600))
	inForce("so a start with a mistake in the files fails: ")
	inForce("correct that, then run \"berth reload --wait\"")
	if _, err := os.Stat(o.AcceptedFile()); !os.IsNotExist(err) {
		t.Errorf("the older configuration is still stored: %v", err)
	}
	must(os.RemoveAll(blocked))
	inForce("")
	test.Check(t, test.Err(os.Stat(o.AcceptedFile())))
}

// A package upgrade removes a runtime for a moment. A reload during this time must
// not make another runtime the default.
func TestReloadKeepsTheDefaultThatIsAway(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	test.Must(t, os.Mkdir(bin, 0o755))
	for _, name := range []string{"runc", "crun"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "config.toml")
	test.Must(t, os.WriteFile(file, nil, 0o600))
	o := test.Value(serveFlags{places: config.Options{File: file, VendorDir: filepath.Join(dir, "vendor"), SearchPath: []string{bin}}}.options())(t)
	start, err := config.Load(o)
	if err != nil || start.DefaultRuntime != "runc" {
		t.Fatalf("the start has %+v, %v", start, err)
	}
	l := newLoader(o, start)
	test.Must(t, os.Remove(filepath.Join(bin, "runc")))
	for range 2 {
		cfg, err := l.Load(t.Context())
		if err != nil || cfg.DefaultRuntime != "runc" || len(cfg.Runtimes) != 2 {
			t.Errorf("without runc: %+v, %v", cfg, err)
		}
	}
}

// Read does not put files in force: after they are restored, Load keeps the default handler.
func TestALookAtFilesIsNoReload(t *testing.T) {
	dir := t.TempDir()
	bin, file := filepath.Join(dir, "bin"), filepath.Join(dir, "config.toml")
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		test.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		test.Must(t, os.WriteFile(path, []byte(text), mode))
	}
	write(filepath.Join(bin, "crun"), "#!/bin/sh\n", 0o755)
	write(file, "", 0o600)
	o := test.Value(serveFlags{places: config.Options{File: file, VendorDir: filepath.Join(dir, "vendor"), SearchPath: []string{bin}}}.options())(t)
	start, err := config.Load(o)
	if err != nil || start.DefaultRuntime != "crun" {
		t.Fatalf("the start has %+v, %v", start, err)
	}
	l := newLoader(o, start)
	write(filepath.Join(bin, "runc"), "#!/bin/sh\n", 0o755)
	write(file, "default_runtime = \"runc\"\n", 0o600)
	if cfg, err := l.Read(t.Context()); err != nil || cfg.DefaultRuntime != "runc" {
		t.Fatalf("Read returns %+v, %v", cfg, err)
	}
	write(file, "", 0o600)
	if cfg, err := l.Load(t.Context()); err != nil || cfg.DefaultRuntime != "crun" {
		t.Errorf("Load returns %+v, %v", cfg, err)
	}
}
