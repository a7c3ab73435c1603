package config

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/dropin"
)

// TestShowIsReadBack loads what Show wrote and expects the same configuration.
func TestShowIsReadBack(t *testing.T) {
	n := newNode(t, "runc", "crun", "containerd-shim-runc-v2", "containerd-shim-kata-v2")
	n.write("config.toml", `default_runtime = "runc"
[server]
socket_mode = "0600"
[cni]
bin_dirs = ["/a \"quoted\" \\ dir", "/b"]
[tracing]
sample_ratio = 0.25
[streaming]
idle_timeout = "1h30m"
[runtimes.runc]
runtime_path = "$BIN/runc"
container_create_timeout = "1500ms"
default_annotations = { "a/b" = "line\nbreak", c = "ü\u0001" }
options = { no_pivot_root = true, global_flags = ["--debug"] }
max_pods = 40
max_parallel_starts = 4
max_queued_starts = 20
start_timeout = "90s"
candidate = { runtime_path = "/opt/next/runc", percent = 0 }
[runtimes.other]
alias_of = "runc"
[runtimes.shim]
runtime_path = "$BIN/containerd-shim-runc-v2"
options = { BinaryName = "$BIN/runc", IoGid = 5 }
[runtimes.kata]
runtime_path = "$BIN/containerd-shim-kata-v2"
pod_annotations = ["io.katacontainers.*"]
platform = "wasi/wasm"
[runtimes.kata.options]
x = 1
[runtimes.kata.options.y]
z = [1.5, 2.5]
`)
	n.write("conf.d/10-crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
	before := n.load()
	var b bytes.Buffer
	test.Must(t, before.Show(&b))
	again := newNode(t)
	again.write("config.toml", b.String())
	after, err := Load(again.options())
	if err != nil {
		t.Fatalf("%v in\n%s", err, b.String())
	}
	for i := range after.Runtimes {
		if after.Runtimes[i].Digest() != before.Runtimes[i].Digest() {
			t.Errorf("got  %+v\nwant %+v", after.Runtimes[i], before.Runtimes[i])
		}
		after.Runtimes[i].Origin = before.Runtimes[i].Origin
	}
	after.Sources, after.origins, after.watched = before.Sources, before.origins, before.watched
	after.documents, after.ReadAt, after.SearchPath = before.documents, before.ReadAt, before.SearchPath
	if !reflect.DeepEqual(after, before) {
		t.Errorf("got  %+v\nwant %+v", after, before)
	}
}

func TestShowSaysWhereValuesAreFrom(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", "[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n[log]\nlevel = \"warn\"\n[import]\ncrio = [\""+n.path("crio.conf")+"\"]\n")
	n.write("crio.conf", "[crio.runtime.runtimes.gone]\nruntime_path = 1\n")
	n.write("conf.d/10.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n")
	cfg := n.load()
	var b bytes.Buffer
	test.Must(t, cfg.Show(&b))
	text := n.relative(b.String())
	for _, want := range []string{
		"default_runtime = \"runc\" # chosen\n",
		"level = \"warn\" # $DIR/config.toml:4\n",
		"format = \"text\" # default\n",
		"socket_mode = \"0660\" # default\n",
		"idle_timeout = \"4h\" # default\n",
		"[runtimes.crun] # $DIR/conf.d/10.toml:1\nruntime_type = \"oci\" # default\nruntime_path = \"$DIR/bin/crun\" # $DIR/conf.d/10.toml:2\n",
		"# [runtimes.gone] is not in use ($DIR/crio.conf:1): $DIR/crio.conf:2:1: runtimes.gone.runtime_path: must be a string",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("Show lacks %q in\n%s", want, text)
		}
	}
}

func TestShortDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 10 * time.Second: "10s", 5 * time.Minute: "5m", 4 * time.Hour: "4h", 90 * time.Minute: "1h30m",
		time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m", 100 * time.Hour: "100h", 1500 * time.Millisecond: "1.5s",
	} {
		test.Equal(t, fmt.Sprintf("shortDuration(%d)", d), shortDuration(d), want)
		test.Equal(t, fmt.Sprintf("%s is read back as", shortDuration(d)), test.Value(time.ParseDuration(shortDuration(d)))(t), d)
	}
}

func TestSettingsSayValueAndOrigin(t *testing.T) {
	n := newNode(t, "runc", "crun", "containerd-shim-kata-v2")
	n.raw("config.toml", "[server]\nsocket = \"/b\"\n[runtimes.runc]\nruntime_path = \""+n.path("bin/runc")+"\"\ndefault_annotations.\"a.b/c\" = \"x\"\n"+
		"[runtimes.kata]\nruntime_path = \""+n.path("bin/containerd-shim-kata-v2")+"\"\n[runtimes.kata.options]\nDeep = { a = [1, 2], b = \"#\" }\n", 0o644)
	cfg := n.load()
	settings := test.Value(cfg.Settings())(t)
	file := n.path("config.toml")
	got := map[string]dropin.Setting{}
	for _, s := range settings {
		got[s.Key] = s
		test.Equal(t, s.Key+" as TOML", dropin.Value(s.Value), s.Value)
	}
	for key, want := range map[string][2]string{
		"server.socket":                             {`"/b"`, file + ":2"},
		"server.socket_mode":                        {`"0660"`, "default"},
		"streaming.idle_timeout":                    {`"4h"`, "default"},
		"default_runtime":                           {`"runc"`, "chosen"},
		"runtimes.runc.runtime_path":                {`"` + n.path("bin/runc") + `"`, file + ":4"},
		"runtimes.runc.snapshotter":                 {`"overlayfs"`, "default"},
		`runtimes.runc.default_annotations."a.b/c"`: {`"x"`, file + ":5"},
		"runtimes.kata.options.Deep.a":              {`[1, 2]`, file + ":9"},
		"runtimes.kata.options.Deep.b":              {`"#"`, file + ":9"},
		"runtimes.kata.container_create_timeout":    {`"4m"`, "default"},
		"engine.overlay_mount_options":              {`[]`, "default"},
	} {
		if key == "default_runtime" && cfg.DefaultRuntime == "" {
			continue
		}
		if s, ok := got[key]; !ok || s.Value != want[0] || s.Origin != want[1] {
			t.Errorf("%s is %q from %q, want %q", key, s.Value, s.Origin, want)
		}
	}
}

func TestSettingsOfDiscoveredHandlers(t *testing.T) {
	n := newNode(t, "crun")
	n.raw("config.toml", "", 0o644)
	settings := test.Value(n.load().Settings())(t)
	for _, s := range settings {
		if s.Key == "runtimes.crun.runtime_path" && strings.HasPrefix(s.Origin, "discovered in ") {
			return
		}
	}
	t.Errorf("crun's path and where it was found are missing: %+v", settings)
}
