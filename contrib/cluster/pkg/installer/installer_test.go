package installer

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

func TestThereAndBack(t *testing.T) {
	n := newTestNode(t)
	n.write(filepath.Join(filepath.Dir(labelFiles[0]), "another"), "x=y")
	before := n.tree()
	test.Must(t, n.install(n.wanted()))
	test.Equal(t, "the kubelet uses", n.endpoint, ours)
	for path, want := range map[string]string{
		kubeletconf.Config:        "# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + theirs + "\n",
		configFile:                signed("version = 1\ndefault_runtime = \"containerd\"\n\n[engine]\ncgroup_driver = \"cgroupfs\"\n\n[runtimes.\"containerd\"]\nendpoint = \"" + theirs + "\"\nremote_handler = \"\"\n"),
		dropIns + "/50-runc.toml": signed("[runtimes.\"runc\"]\nendpoint = \"" + theirs + "\"\nremote_handler = \"runc\"\n"),
		dropIns + "/50-crun.toml": signed("[runtimes.\"crun\"]\nruntime_path = \"/opt/berth/runtimes/crun/1.24/crun\"\n"),
		unitFile:                  signed("[Service]\nExecStart=/opt/berth/current/bin/berth serve\n"),
		program:                   "bin/berth",
		"/opt/berth/runtimes/kata/3.2/share/defaults/kata-containers/configuration.toml": "path = \"/opt/berth/runtimes/kata/3.2/bin/qemu\"\n",
	} {
		test.Equal(t, path, n.read(path), want)
	}
	if info, err := os.Stat(filepath.Join(n.root, kubeletconf.Config)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubelet's configuration has the mode %v, want 0600, %v", info.Mode(), err)
	}
	test.Must(t, n.uninstall())
	n.as(before)
}

// With SELinux, programs that have the labels of the installer's pod would not start.
func TestRelabelled(t *testing.T) {
	n := newTestNode(t)
	n.write("/sys/fs/selinux/enforce", "1")
	n.write("/usr/sbin/restorecon", "")
	test.Must(t, n.install(n.wanted()))
	label, start := slices.Index(n.asked, "restorecon -R /opt/berth"), slices.Index(n.asked, "systemctl restart berth.service")
	if label < 0 || label > start {
		t.Errorf("restorecon is missing or too late among the commands %q", n.asked)
	}
}

// TestFailed lets an installation fail at several steps. The node must be as before.
func TestFailed(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*node)
		wrong   string
	}{
		"configuration": {func(n *node) { n.fails["berth check"] = exited(2) }, "berth refuses the configuration"},
		"start":         {func(n *node) { n.fails["systemctl restart berth.service"] = exited(1) }, "berth does not start"},
		"doctor": {func(n *node) {
			n.doctor = `{"check":"cgroup-driver","level":"fail","text":"the drivers differ","next":"set it"}`
		}, "doctor: cgroup-driver: the drivers differ; set it"},
		"kubelet": {func(n *node) {
			n.write("/etc/default/kubelet", "X=--image-service-endpoint=unix:///run/stargz.sock\n")
		}, "pulls images by unix:///run/stargz.sock"},
		"a drop-in exists":       {func(n *node) { n.write(handlerFile("crun"), "") }, handlerFile("crun") + " exists"},
		"a package is installed": {func(n *node) { n.write("/usr/lib/systemd/system/berth.service", "") }, "/usr/lib/systemd/system/berth.service exists"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			c.prepare(n)
			before := n.tree()
			test.Says(t, n.install(n.wanted()), c.wrong)
			n.as(before)
		})
	}
}

// A new version replaces the old one, and an uninstallation still restores the first state.
func TestUpgrade(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	test.Must(t, n.install(w))
	n.asked = nil
	w.Version = "1.1.0"
	test.Must(t, n.install(w))
	if link, err := os.Readlink(filepath.Join(n.root, current)); link != "1.1.0" || err != nil {
		t.Errorf("the current version is %s, want 1.1.0: %v", link, err)
	}
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Error("the kubelet was restarted")
	}
	// A version that does not start: the previous one runs on.
	w.Version = "1.2.0"
	n.fails["systemctl restart berth.service"] = exited(1)
	test.Fails(t, n.install(w), "a version that does not start is installed")
	if link, err := os.Readlink(filepath.Join(n.root, current)); link != "1.1.0" || err != nil {
		t.Errorf("the current version is %s, want 1.1.0: %v", link, err)
	}
	if n.endpoint != ours {
		t.Error("the kubelet was moved back, away from its pods")
	}
	delete(n.fails, "systemctl restart berth.service")
	test.Must(t, n.uninstall())
	n.as(before)
}

// An uninstallation waits for pods of berth's own engine, which no other daemon could take over.
func TestUninstallWithPods(t *testing.T) {
	n := newTestNode(t)
	w, first := n.wanted(), n.tree()
	w.Config = "default_runtime = \"crun\""
	test.Must(t, n.install(w))
	test.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(n.root, recordsOfPods)), 0o755))
	before := n.tree()
	n.write(recordsOfPods+"/abc/spec.json", "{}")
	n.pod("def", "kata")
	n.asked = nil
	if err := n.uninstall(); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "2 pods (abc, shop/def)") {
		t.Errorf("got %v, want the 2 pods", err)
	}
	if n.endpoint != ours || !n.running["berth"] {
		t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
	}
	// No new pods run in the engine, even if the configuration had it as default.
	if got := n.served(); !slices.Equal(got, []string{"containerd", "crun", "runc"}) || !slices.Contains(n.asked, "berth reload --wait -o json") {
		t.Errorf("the handlers are %v, after the commands %q", got, n.asked)
	}
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "endpoint = ") {
		t.Errorf("the drop-in of crun is %s", got)
	}
	if got := n.read(extraFile); !strings.Contains(got, "no such file") {
		t.Errorf("the values' configuration is left: %s", got)
	}
	test.Must(t, os.RemoveAll(filepath.Join(n.root, recordsOfPods)))
	// berth is wanted again.
	test.Must(t, n.install(w))
	if now := n.tree(); now != before || n.endpoint != ours {
		t.Errorf("the node was\n%s\nbut is now\n%s", before, now)
	}
	test.Must(t, n.uninstall())
	n.as(first)
}

// Mounts in berth's state directory are found behind symbolic links.
func TestMountedState(t *testing.T) {
	n := newTestNode(t)
	test.Must(t, os.Rename(filepath.Join(n.root, "var/lib"), filepath.Join(n.root, "data")))
	test.Must(t, os.Symlink("/data", filepath.Join(n.root, "var/lib")))
	// netns is first, because the mount pods, which is left, keeps later directories from removal.
	for _, mount := range []string{"netns/null-netns", "pods"} {
		there, left := filepath.Join(n.root, "data/berth", mount), mount == "pods"
		test.Must(t, os.MkdirAll(there, 0o755))
		test.Must(t, unix.Mount("tmpfs", there, "tmpfs", 0, ""))
		t.Cleanup(func() { _ = unix.Unmount(there, unix.MNT_DETACH) })
		test.Must(t, n.installer().removeState(t.Context(), n.installer().root().Path(stateDirs[0])))
		if _, err := os.Stat(there); (err == nil) != left {
			t.Errorf("%s: wrongly left or removed: %v", mount, err)
		}
	}
}

func TestValidate(t *testing.T) {
	good := Runtime{Handler: "crun", Kind: "crun", Version: "1.24", Source: "/runtimes/crun"}
	with := func(change func(*Runtime)) Wanted {
		r := good
		change(&r)
		return Wanted{Version: "1.0.0", Runtimes: []Runtime{r}}
	}
	for name, c := range map[string]struct {
		w     Wanted
		wrong string
	}{
		"good":             {with(func(*Runtime) {}), ""},
		"unknown kind":     {with(func(r *Runtime) { r.Kind = "rkt" }), `kind "rkt" is not one of crun, kata, runc, runsc, youki`},
		"name":             {with(func(r *Runtime) { r.Handler = "../x" }), "a handler's name"},
		"version":          {with(func(r *Runtime) { r.Version = "../../etc" }), "cannot be part of a path"},
		"no version":       {with(func(r *Runtime) { r.Version = "" }), "cannot be part of a path"},
		"source":           {with(func(r *Runtime) { r.Source = "crun" }), "not an absolute path"},
		"twice":            {Wanted{Version: "1", Runtimes: []Runtime{good, good}}, "given to two runtimes"},
		"endpoint":         {Wanted{Version: "1", Endpoint: "tcp://1.2.3.4"}, "is not a unix socket"},
		"berth's own":      {Wanted{Version: "1", Endpoint: ours}, "is berth's own"},
		"root":             {Wanted{Version: "1", Config: "[engine]\nroot = \"/data\""}, "config sets engine.root"},
		"state":            {Wanted{Version: "1", Config: "engine.state = \"/data\""}, "config sets engine.state"},
		"socket":           {Wanted{Version: "1", Config: "server = {socket = \"/x\"}"}, "config sets server.socket"},
		"config":           {Wanted{Version: "1", Config: "[engine]\ncgroup_driver = \"systemd\"\n[server]\nruntime_name = \"x\""}, ""},
		"not TOML":         {Wanted{Version: "1", Config: "[engine"}, "config: "},
		"version of berth": {Wanted{Version: "a/b"}, "cannot be part of a path"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.w.Validate()
			if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
		})
	}
}

// A failed upgrade removes nothing that existed before it, also if the kubelet was not moved.
func TestFailedUpgradeBeside(t *testing.T) {
	for name, fail := range map[string]func(*node){
		"configuration": func(n *node) { n.fails["berth check"] = exited(2) },
		"start":         func(n *node) { n.broken = "1.1.0" },
		"doctor":        func(n *node) { n.doctor = `{"check":"handlers","level":"fail"}` },
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			w, before := n.wanted(), n.tree()
			w.Kubelet = false
			test.Must(t, n.install(w))
			fail(n)
			w.Version = "1.1.0"
			test.Fails(t, n.install(w), "the upgrade succeeds")
			if !n.running["berth"] || n.version != "1.0.0" || !slices.Contains(n.served(), "kata") {
				t.Errorf("berth runs: %t, version %q, with the handlers %v", n.running["berth"], n.version, n.served())
			}
			// A failed move of the kubelet removes nothing either.
			n.fails, n.broken, n.doctor = map[string]error{}, "", ""
			w.Version, w.Kubelet = "1.0.0", true
			n.fails["systemctl restart kubelet.service"] = exited(1)
			test.Fails(t, n.install(w), "the move of the kubelet succeeds")
			n.fails = map[string]error{}
			test.Must(t, n.install(w))
			if n.endpoint != ours || !n.running["berth"] {
				t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
			}
			test.Must(t, n.uninstall())
			n.as(before)
		})
	}
}

// When an edited file of the installer is replaced or removed, the edit is kept beside it.
func TestEditedFiles(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	test.Must(t, n.install(w))
	edited := []string{configFile, extraFile, handlerFile("crun"), handlerFile("runc"), unitFile}
	for _, path := range edited {
		n.write(path, "# by hand: "+path+"\n")
	}
	n.write(dropIns+"/99-theirs.toml", "# of others\n")
	w.Version, w.Config, w.Runtimes[0].Version = "1.1.0", "[metrics]\naddress = \"127.0.0.1:1\"", "1.25"
	test.Must(t, n.install(w))
	for _, path := range edited {
		if got := n.read(path); !isSigned(got) {
			t.Errorf("%s is %q, want a text of the installer", path, got)
		}
		if got := n.read(path + keptSuffix); got != "# by hand: "+path+"\n" {
			t.Errorf("the edit of %s is kept as %q", path, got)
		}
	}
	n.write(handlerFile("kata"), "# by hand, too\n")
	test.Must(t, n.uninstall())
	if got := n.read(handlerFile("kata") + keptSuffix); got != "# by hand, too\n" {
		t.Errorf("the edit of kata's drop-in is kept as %q", got)
	}
	if got := n.read(handlerFile("kata")); !strings.Contains(got, "no such file") {
		t.Errorf("kata's drop-in is left: %s", got)
	}
	test.Equal(t, "a drop-in of others", n.read(dropIns+"/99-theirs.toml"), "# of others\n")
}

// berth rejects a configuration whose directory of drop-ins is missing. The directory must stay when
// the last drop-in is removed, so it always has one other file.
func TestDirectoryOfDropInsStays(t *testing.T) {
	for _, b := range []Beside{{}, {Handlers: []string{"runc"}}} {
		files := slices.Collect(maps.Keys(configTexts(b, "")))
		if !slices.ContainsFunc(files, func(f string) bool { return filepath.Dir(f) == dropIns && filepath.Ext(f) != ".toml" }) {
			t.Errorf("with handlers %q the files are %q", b.Handlers, files)
		}
	}
}
