package main

import (
	"context"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/lifecycle"
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

// A daemon with a mistake in its configuration exits before it creates anything.
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
		t.Errorf("%s was created", entries[i].Name())
	}
}

func TestTakeEnv(t *testing.T) {
	t.Setenv("BERTH_TEST_TAKEN", "value")
	test.Equal(t, "takeEnv", takeEnv("BERTH_TEST_TAKEN"), "value")
	if _, ok := os.LookupEnv("BERTH_TEST_TAKEN"); ok {
		t.Error("the variable is still in the environment")
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

// raise sends this process a signal.
func raise(t *testing.T, s unix.Signal) {
	t.Helper()
	test.Must(t, unix.Kill(unix.Getpid(), s))
}

// ended reports whether a context ends within a time.
func ended(ctx context.Context, within time.Duration) bool {
	select {
	case <-ctx.Done():
		return true
	case <-time.After(within):
		return false
	}
}

func TestSignals(t *testing.T) {
	for _, end := range []unix.Signal{unix.SIGTERM, unix.SIGINT} {
		seen := make(chan os.Signal, 2)
		signal.Notify(seen, end)
		ctx, hangups, done := untilSignal(t.Context())
		// SIGHUP would end the test process if it were not caught.
		raise(t, unix.SIGHUP)
		raise(t, unix.SIGPIPE)
		if ended(ctx, 50*time.Millisecond) {
			t.Error("SIGHUP or SIGPIPE ends the daemon")
		}
		reloads := make(chan lifecycle.Trigger, 1)
		go reloadOn(ctx, hangups, func(wanted lifecycle.Trigger) { reloads <- wanted })
		select {
		case wanted := <-reloads:
			test.Equal(t, "trigger of the reload after SIGHUP", wanted, lifecycle.TriggerSignal)
		case <-time.After(10 * time.Second):
			t.Error("SIGHUP causes no reload")
		}
		raise(t, end)
		if !ended(ctx, time.Minute) {
			t.Errorf("%s does not end the daemon", end)
		}
		// A second signal reaches a daemon that is stopping. It must arrive before
		// done, after which signals are not caught.
		raise(t, end)
		<-seen
		<-seen
		done()
		signal.Stop(seen)
	}
}

func TestSignalsEndWithTheParent(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	ctx, _, done := untilSignal(parent)
	defer done()
	cancel()
	if !ended(ctx, time.Minute) {
		t.Error("the context does not end with its parent")
	}
}
