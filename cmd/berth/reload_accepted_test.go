package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
)

// An accepted configuration that cannot be written is a fault until it could be: meanwhile
// none is kept, and a start with a mistake fails.
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
			t.Errorf("faults are %q", got)
		}
	}
	if got := l.Faults(); len(got) > 0 {
		t.Errorf("before the first is in force, faults are %q", got)
	}
	inForce("")
	blocked := filepath.Join(dir, "accepted-config", "."+filepath.Base(o.AcceptedFile())+".new")
	must(os.MkdirAll(filepath.Join(blocked, "x"), 0o700))
	must(os.WriteFile(file, []byte("[log]\nlevel = \"debug\"\n"), 0o600))
	inForce("so a start with a mistake in the files fails: ")
	inForce("correct that, then run \"berth reload --wait\"")
	if _, err := os.Stat(o.AcceptedFile()); !os.IsNotExist(err) {
		t.Errorf("the older one is there: %v", err)
	}
	must(os.RemoveAll(blocked))
	inForce("")
	test.Check(t, test.Err(os.Stat(o.AcceptedFile())))
}
