package config

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config/hostfiles"
	"github.com/berth-cri/berth/pkg/handler"
)

func TestEveryKeyOfAHandler(t *testing.T) {
	n := newNode(t, "runsc")
	n.raw("bin/spec.json", `{"ociVersion": "1.0.2"}`, 0o644)
	n.raw("bin/runsc.toml", "", 0o644)
	n.write("config.toml", `
[engine]
snapshotter = "native"

[runtimes.gvisor]
runtime_path = "$BIN/runsc"
runtime_type = "oci"
runtime_root = "/run/gvisor"
runtime_config_path = "$BIN/runsc.toml"
pod_annotations = ["dev.gvisor.*"]
container_annotations = ["dev.?", "x"]
default_annotations = { "a/b" = "c" }
privileged_without_host_devices = true
snapshotter = "overlayfs"
base_runtime_spec = "$BIN/spec.json"
cni_conf_dir = "/etc/cni/gvisor"
container_create_timeout = "90s"
sandbox_process = "always"
supervision = "pod"
max_pods = 40
max_parallel_starts = 4
max_queued_starts = 20
start_timeout = "2m"
self_check_pod = true
self_check_timeout = "5m"
conforms = ["sandboxed/v1"]
[runtimes.gvisor.options]
no_pivot_root = true
no_new_keyring = true
global_flags = ["--platform", "systrap", "--debug"]
`)
	want := &handler.Definition{
		Name: "gvisor", Type: handler.OCI, Path: n.path("bin/runsc"), Root: "/run/gvisor", ConfigPath: n.path("bin/runsc.toml"),
		OCI:            handler.OCIOptions{NoPivotRoot: true, NoNewKeyring: true, GlobalFlags: []string{"--platform", "systrap", "--debug"}},
		PodAnnotations: []string{"dev.gvisor.*"}, ContainerAnnotations: []string{"dev.?", "x"},
		DefaultAnnotations: map[string]string{"a/b": "c"}, PrivilegedWithoutHostDevices: true,
		Snapshotter: "overlayfs", BaseRuntimeSpec: n.path("bin/spec.json"), CNIConfDir: "/etc/cni/gvisor",
		ContainerCreateTimeout: 90 * time.Second, SandboxProcess: handler.SandboxProcessAlways, Supervision: handler.SupervisionPod,
		Limits:         handler.Limits{MaxPods: 40, MaxParallelStarts: 4, MaxQueuedStarts: 20, StartTimeout: 2 * time.Minute},
		ProbeSelfCheck: true, SelfCheckTimeout: 5 * time.Minute, Conforms: []string{"sandboxed/v1"},
		Origin: n.path("config.toml") + ":5",
	}
	cfg := n.load()
	if len(cfg.Runtimes) != 1 || !reflect.DeepEqual(cfg.Runtimes[0], want) {
		t.Errorf("got  %+v\nwant %+v", cfg.Runtimes[0], want)
	}
	if cfg.DefaultRuntime != "gvisor" || cfg.Discovered {
		t.Errorf("default %q, discovered %v", cfg.DefaultRuntime, cfg.Discovered)
	}
}

func TestHandlerInheritsFromTheEngine(t *testing.T) {
	n := newNode(t, "runc", "containerd-shim-kata-v2")
	n.write("config.toml", `default_runtime = "runc"
[runtimes.runc]
runtime_path = "$BIN/runc"
[runtimes.kata]
runtime_path = "$BIN/containerd-shim-kata-v2"
[engine]
snapshotter = "native"
supervision = "pod"
`)
	cfg := n.load()
	kata, runc := cfg.Runtimes[0], cfg.Runtimes[1]
	if runc.Snapshotter != "native" || runc.Supervision != handler.SupervisionPod || runc.Type != handler.OCI {
		t.Errorf("runc is %+v", runc)
	}
	if kata.Snapshotter != "native" || kata.Supervision != "" || kata.Type != handler.Shim {
		t.Errorf("kata is %+v", kata)
	}
	if runc.ContainerCreateTimeout != 4*time.Minute || runc.SandboxProcess != handler.SandboxProcessAuto {
		t.Errorf("runc lacks defaults: %+v", runc)
	}
}

func TestShimOptions(t *testing.T) {
	n := newNode(t, "runc", "containerd-shim-runc-v2", "containerd-shim-kata-v2")
	n.write("config.toml", `default_runtime = "kata"
[runtimes.runc]
runtime_path = "$BIN/containerd-shim-runc-v2"
options = { BinaryName = "$BIN/runc", IoUid = 7, NoPivotRoot = true }
[runtimes.kata]
runtime_path = "$BIN/containerd-shim-kata-v2"
[runtimes.kata.options]
TypeUrl = "example.options"
hypervisor = "none"
[runtimes.kata.options.more]
when = 2020-01-02
ratio = nan
`)
	cfg := n.load()
	kata, runc := cfg.Runtimes[0], cfg.Runtimes[1]
	want := map[string]any{"BinaryName": n.path("bin/runc"), "IoUid": int64(7), "NoPivotRoot": true}
	if !reflect.DeepEqual(runc.ShimOptions, want) || runc.ShimOptionsTOML != "" {
		t.Errorf("the runc shim's options are %v, %q", runc.ShimOptions, runc.ShimOptionsTOML)
	}
	for _, part := range []string{"hypervisor = ", "[more]", "2020-01-02", "nan"} {
		if !strings.Contains(kata.ShimOptionsTOML, part) {
			t.Errorf("%q lacks %q", kata.ShimOptionsTOML, part)
		}
	}
	test.Equal(t, "the type of kata's options", kata.ShimOptionsType, "example.options")
	if kata.ShimOptions != nil || kata.Digest() == "" {
		t.Errorf("kata's options are kept twice: %v", kata.ShimOptions)
	}
}

func TestRunscByAnyOfItsNamesHasAConfigurationFile(t *testing.T) {
	n := newNode(t, "runsc-20260101")
	n.raw("bin/runsc.toml", "", 0o644)
	n.write("config.toml", "[runtimes.gvisor]\nruntime_path = \"$BIN/runsc-20260101\"\nruntime_config_path = \"$BIN/runsc.toml\"\n")
	test.Equal(t, "ConfigPath", n.load().Runtimes[0].ConfigPath, n.path("bin/runsc.toml"))
}

func TestDropInsAreReadInOrder(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", "[log]\nlevel = \"warn\"\nformat = \"json\"\n[cni]\nbin_dirs = [\"/a\", \"/b\"]\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
	n.write("vendor/10-crun.toml", "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n[log]\nlevel = \"error\"\n")
	n.write("vendor/20-off.toml", "[runtimes.off]\nruntime_path = \"/nowhere\"\n")
	n.write("conf.d/20-off.toml", "")                                                // masks the vendor's file
	n.write("vendor/70-null.toml", "[runtimes.null]\nruntime_path = \"/nowhere\"\n") // masked by the link to /dev/null
	n.write("conf.d/30-log.toml", "[log]\nlevel = \"debug\"\n[cni]\nbin_dirs = [\"/c\"]\n")
	n.write("conf.d/05-first.toml", "[log]\nlevel = \"trace\"\n")
	n.write("conf.d/40-note.txt", "not TOML")
	n.write("conf.d/.50-swap.toml", "not TOML")
	n.write("conf.d/60.toml/nested.toml", "not TOML")
	test.Must(t, os.Symlink(os.DevNull, n.path("conf.d/70-null.toml")))
	cfg := n.load()
	if cfg.Log.Level != "debug" || cfg.Log.Format != "json" || !slices.Equal(cfg.CNI.BinDirs, []string{"/c"}) {
		t.Errorf("merged to %+v, %+v", cfg.Log, cfg.CNI)
	}
	if got := names(cfg); got != "crun runc" || cfg.Discovered {
		t.Errorf("handlers are %s", got)
	}
	test.Equal(t, "default", cfg.DefaultRuntime, "runc")
	var sources []string
	for _, s := range cfg.Sources {
		sources = append(sources, n.relative(s))
	}
	want := []string{"$DIR/config.toml", "$DIR/conf.d/05-first.toml", "$DIR/vendor/10-crun.toml",
		"$DIR/conf.d/20-off.toml", "$DIR/conf.d/30-log.toml", "$DIR/conf.d/70-null.toml"}
	test.EqualLists(t, "sources", sources, want)
	for key, want := range map[string]string{
		"log.level": "$DIR/conf.d/30-log.toml:2", "log.format": "$DIR/config.toml:3", "cni.conf_dir": "default",
		"runtimes.crun.runtime_path": "$DIR/vendor/10-crun.toml:2",
	} {
		test.Equal(t, fmt.Sprintf("%s is from", key), n.relative(cfg.Origin(key).String()), want)
	}
}

func TestMainFile(t *testing.T) {
	n := newNode(t, "crun")
	o := n.options()
	test.EqualLists(t, "a main file that does not exist", n.refuse(o), []string{"$DIR/config.toml: the file does not exist"})
	n.write("config.toml", "")
	if cfg := n.load(); !cfg.Discovered || names(cfg) != "crun" || cfg.DefaultRuntime != "crun" {
		t.Errorf("an empty file does not discover: %+v", cfg)
	}
	n.write("config.toml", "[log]\nlevel = \"warn\"\n[runtimes]\n")
	if cfg := n.load(); !cfg.Discovered || cfg.Log.Level != "warn" {
		t.Errorf("a file without handlers does not discover: %+v", cfg)
	}
}

// TestNoConfiguration needs a machine without /etc/berth, such as those of CI
// and of developers.
func TestNoConfiguration(t *testing.T) {
	if _, err := os.Stat(filepath.Dir(DefaultFile)); err == nil {
		t.Skipf("this machine has %s", filepath.Dir(DefaultFile))
	}
	n := newNode(t, "runsc", "containerd-shim-kata-v2")
	cfg := test.Value(Load(Options{SearchPath: []string{n.path("bin")}}))(t)
	if names(cfg) != "gvisor kata runsc" || cfg.DefaultRuntime != "gvisor" || !cfg.Discovered || len(cfg.Sources) != 0 {
		t.Errorf("got %s, default %s, from %v", names(cfg), cfg.DefaultRuntime, cfg.Sources)
	}
}

func TestUnreadableFiles(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", strings.Repeat("# filler\n", hostfiles.MaxFileSize/8))
	if got := n.refuse(n.options()); !strings.Contains(got[0], "the limit for a configuration file is") {
		t.Errorf("huge main file: %v", got)
	}
	o := n.options()
	o.File = n.path("bin")
	if got := n.refuse(o); !strings.Contains(strings.Join(got, " "), "must be a file, not a directory") {
		t.Errorf("directory as the main file: %v", got)
	}
	n.write("config.toml", "")
	o = n.options()
	o.DropInDir = n.path("config.toml")
	test.EqualLists(t, "a file as the drop-in directory", n.refuse(o), []string{"$DIR/config.toml: cannot be listed: not a directory"})
}

func TestFlagsWin(t *testing.T) {
	n := newNode(t, "runc", "crun")
	n.write("config.toml", "[server]\nsocket = \"/a\"\n")
	o := n.options()
	o.Flags = map[string]string{
		"server.socket": "/b", "server.socket_mode": "0600", "streaming.port": "99", "engine.unprivileged_icmp": "false",
		"cni.bin_dirs": "/x,/y", "tracing.sample_ratio": "0.5", "streaming.idle_timeout": "1m", "default_runtime": "crun",
		"engine.supervision": "pod", "handlers.watch": "0",
	}
	cfg := test.Value(Load(o))(t)
	got := []any{cfg.Handlers.Watch, cfg.Server, cfg.Streaming, cfg.Engine.UnprivilegedICMP, cfg.CNI.BinDirs, cfg.Tracing.SampleRatio, cfg.DefaultRuntime, cfg.Runtimes[0].Supervision}
	want := []any{false, Server{Socket: "/b", SocketMode: 0o600, RuntimeName: "berth"}, Streaming{Address: "127.0.0.1", Port: 99, IdleTimeout: time.Minute, PermittedRemoteHosts: []string{}},
		false, []string{"/x", "/y"}, 0.5, "crun", handler.SupervisionPod}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	test.Equal(t, "server.socket is from", cfg.Origin("server.socket").String(), "command line")
	o.Flags = map[string]string{
		"server.socket": "b", "streaming.port": "many", "image_verifier": "x", "server.listen": "x", "engine.cgroup_drver": "x",
		"runtimes.runc.snapshotter": "native", "cgroup_driver": "x", "image_verifier.nothing_like_it": "x",
	}
	wantLines := []string{
		`command line: cgroup_driver: unknown key here; it belongs into [engine] (did you mean "engine.cgroup_driver"?)`,
		`command line: engine.cgroup_drver: unknown key (did you mean "engine.cgroup_driver"?)`,
		`command line: image_verifier: is a table; expected one of bin_dir, per_verifier_timeout in it`,
		`command line: image_verifier.nothing_like_it: unknown key; expected one of bin_dir, per_verifier_timeout`,
		`command line: runtimes.runc.snapshotter: handlers come from files; write [runtimes.<handler>] into a drop-in`,
		`command line: server.listen: unknown key; use server.socket (did you mean "server.socket"?)`,
		`command line: server.socket: "b" must be an absolute path`,
		`command line: streaming.port: must be an integer, not a string`,
	}
	if lines := n.refuse(o); !slices.Equal(lines, wantLines) {
		t.Errorf("got %s", strings.Join(lines, "\n"))
	}
}

func TestChooseDefault(t *testing.T) {
	for _, c := range []struct {
		byMain, known, want string
	}{
		{"a", "a b", "a"},
		{"a crun runc", "a crun runc", "runc"},
		{"a crun", "a crun runc", "crun"}, // a drop-in's runc changes nothing
		{"runsc youki", "runsc youki", "youki"},
		{"a b", "a b runc", ""},
		{"", "a", "a"},
		{"", "kata crun", "crun"},
		{"", "a b", ""},
	} {
		test.Equal(t, fmt.Sprintf("chooseDefault(%q, %q)", c.byMain, c.known), chooseDefault(strings.Fields(c.byMain), strings.Fields(c.known)), c.want)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	v := &validator{cfg: Default()}
	if v.validate(); len(v.problems) != 0 {
		t.Error(v.problems)
	}
}

// TestDropInsDoNotMoveTheDefault adds a drop-in with a runtime that is preferred
// to the existing ones.
func TestDropInsDoNotMoveTheDefault(t *testing.T) {
	const dropIn = "[runtimes.runc]\nruntime_path = \"$BIN/other\"\n"
	for what, main := range map[string]string{
		"discovered": "", "configured": "[runtimes.crun]\nruntime_path = \"$BIN/crun\"\n[runtimes.youki]\nruntime_path = \"$BIN/other\"\n",
	} {
		n := newNode(t, "crun", "other")
		n.write("config.toml", main)
		if cfg := n.load(); cfg.DefaultRuntime != "crun" {
			t.Fatalf("%s: the default is %s", what, cfg.DefaultRuntime)
		}
		n.write("conf.d/10-runc.toml", dropIn)
		if cfg := n.load(); cfg.DefaultRuntime != "crun" || !strings.Contains(names(cfg), "runc") {
			t.Errorf("%s: with the drop-in the default of %s is %s", what, names(cfg), cfg.DefaultRuntime)
		}
	}
}

// An absolute path need not be clean.
func TestSocketForAgentsIsAnyAbsolutePath(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", "[containerd_api]\nsocket = \"/run//containerd/containerd.sock\"\n\n[runtimes.runc]\nruntime_path = \"$BIN/runc\"\n")
	test.Equal(t, "containerd_api.socket", n.load().ContainerdAPI.Socket, "/run//containerd/containerd.sock")
}

// TestLongAdminSocket: the default admin socket is too long, and server.socket is not.
func TestLongAdminSocket(t *testing.T) {
	n := newNode(t, "runc")
	n.write("config.toml", "[server]\nsocket = \"/"+strings.Repeat("x", 98)+"/s\"\n")
	if lines := n.refuse(n.options()); !slices.Equal(lines, []string{"server.admin_socket: has 110 bytes; the limit for unix socket paths is 107"}) {
		t.Errorf("got %q", lines)
	}
}
