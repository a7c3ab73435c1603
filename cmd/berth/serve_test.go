package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
)

func TestServeFlagsBecomeOptions(t *testing.T) {
	for line, want := range map[string]struct {
		file  string
		flags map[string]string
	}{
		"":                                   {flags: map[string]string{}},
		"-c /a.toml":                         {file: "/a.toml", flags: map[string]string{}},
		"--socket /s --log-level info":       {flags: map[string]string{"server.socket": "/s", "log.level": "info"}},
		"--log-format json":                  {flags: map[string]string{"log.format": "json"}},
		"--set a.b=c=d --set e.f=":           {flags: map[string]string{"a.b": "c=d", "e.f": ""}},
		"--socket /s --set server.socket=/t": {flags: map[string]string{"server.socket": "/t"}},
	} {
		t.Run(line, func(t *testing.T) {
			var f serveFlags
			c := serveCommand(&f)
			test.Must(t, c.ParseFlags(strings.Fields(line)))
			o, err := f.options()
			if err != nil || o.File != want.file || !maps.Equal(o.Flags, want.flags) {
				t.Errorf("got %+v, %v", o, err)
			}
		})
	}
}

// A daemon whose configuration is wrong ends before it touches anything.
func TestServeRefusesAWrongConfiguration(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "config.toml")
	test.Must(t, os.WriteFile(file, []byte("[log]\nlevle = \"info\"\n"), 0o600))
	code, _, stderr := ran(t, "serve", "-c", file, "--vendor-dir", filepath.Join(dir, "vendor"), "--search-path", dir, "--socket", dir+"/cri.sock")
	if code != commandline.Mistaken || !strings.Contains(stderr, "config.toml:2:1: log.levle: unknown key") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
	entries := test.Value(os.ReadDir(dir))(t)
	if i := slices.IndexFunc(entries, func(e os.DirEntry) bool { return strings.HasPrefix(e.Name(), "cri.sock") }); i >= 0 {
		t.Errorf("%s was made", entries[i].Name())
	}
}

func TestTakeEnv(t *testing.T) {
	t.Setenv("BERTH_TEST_TAKEN", "value")
	test.Equal(t, "the result", takeEnv("BERTH_TEST_TAKEN"), "value")
	if _, ok := os.LookupEnv("BERTH_TEST_TAKEN"); ok {
		t.Error("children would see the variable")
	}
}

func TestSetLog(t *testing.T) {
	before := log.GetLevel()
	defer func() { test.Check(t, setLog(config.Log{Level: before.String(), Format: string(log.TextFormat)})) }()
	if err := setLog(config.Log{Level: "warn", Format: "json"}); err != nil || log.GetLevel() != log.WarnLevel {
		t.Errorf("level %s, error %v", log.GetLevel(), err)
	}
	test.Says(t, setLog(config.Log{Level: "loud", Format: "json"}), "log.level")
	test.Says(t, setLog(config.Log{Level: "warn", Format: "xml"}), "log.format")
}
