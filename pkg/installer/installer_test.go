package installer

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

func TestThereAndBack(t *testing.T) {
	n := newTestNode(t)
	n.write(filepath.Join(filepath.Dir(labelFiles[0]), "another"), "x=y")
	before := n.tree()
	if err := n.installer("").Install(t.Context(), n.wanted()); err != nil {
		t.Fatal(err)
	}
	if n.running["rescue"] || strings.Contains(n.tree(), "berth-installer-rescue") {
		t.Error("the rescue is left")
	}
	if n.endpoint != ours || n.held || n.turns != 1 {
		t.Errorf("the kubelet uses %s; the turn is held: %t, and was taken %d times", n.endpoint, n.held, n.turns)
	}
	for path, want := range map[string]string{
		kubelet.Config:            "# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + ours + "\n",
		configFile:                "# Written by berth-installer.\nversion = 1\ndefault_runtime = \"containerd\"\n\n[engine]\ncgroup_driver = \"cgroupfs\"\n\n[runtimes.\"containerd\"]\nendpoint = \"" + theirs + "\"\nremote_handler = \"\"\n",
		dropIns + "/50-runc.toml": "# Written by berth-installer.\n[runtimes.\"runc\"]\nendpoint = \"" + theirs + "\"\nremote_handler = \"runc\"\n",
		dropIns + "/50-crun.toml": "# Written by berth-installer.\n[runtimes.\"crun\"]\nruntime_path = \"/opt/berth/runtimes/crun/1.24/crun\"\n",
		unitFile:                  "[Service]\nExecStart=/opt/berth/current/bin/berth serve\n",
		program:                   "bin/berth",
		"/opt/berth/runtimes/kata/3.2/share/defaults/kata-containers/configuration.toml": "path = \"/opt/berth/runtimes/kata/3.2/bin/qemu\"\n",
	} {
		if got := n.read(path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	if info, err := os.Stat(filepath.Join(n.root, kubelet.Config)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubelet's configuration may be read by others: %v, %v", info.Mode(), err)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A node with SELinux would not start programs with the labels of a pod.
func TestRelabelled(t *testing.T) {
	n := newTestNode(t)
	n.write("/sys/fs/selinux/enforce", "1")
	n.write("/usr/sbin/restorecon", "")
	if err := n.installer("").Install(t.Context(), n.wanted()); err != nil {
		t.Fatal(err)
	}
	label, start := slices.Index(n.asked, "restorecon -R /opt/berth"), slices.Index(n.asked, "systemctl restart berth.service")
	if label < 0 || label > start {
		t.Errorf("it was asked %q", n.asked)
	}
}

// TestFailed has something fail: what was there before is there again, and the turn is kept.
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
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--config=/etc/none.yaml")
		}, "/etc/none.yaml does not exist"},
		"a package is there": {func(n *node) { n.write("/usr/lib/systemd/system/berth.service", "") }, "/usr/lib/systemd/system/berth.service exists"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			c.prepare(n)
			before := n.tree()
			err := n.installer("").Install(t.Context(), n.wanted())
			if err == nil || !strings.Contains(err.Error(), c.wrong) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
			n.as(before)
			if !n.held {
				t.Error("another node meets the same")
			}
		})
	}
}

// A new version replaces the old one, and the way back still leads to what was there at first.
func TestUpgrade(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	n.asked = nil
	w.Version = "1.1.0"
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if link, err := os.Readlink(filepath.Join(n.root, current)); link != "1.1.0" || err != nil {
		t.Errorf("%s is current: %v", link, err)
	}
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Error("the kubelet was restarted")
	}
	// One that does not start: the one before goes on.
	w.Version = "1.2.0"
	n.fails["systemctl restart berth.service"] = exited(1)
	if err := n.installer("").Install(t.Context(), w); err == nil {
		t.Error("it starts")
	}
	if link, err := os.Readlink(filepath.Join(n.root, current)); link != "1.1.0" || err != nil {
		t.Errorf("%s is current: %v", link, err)
	}
	if n.endpoint != ours {
		t.Error("the kubelet has been moved back, away from its pods")
	}
	delete(n.fails, "systemctl restart berth.service")
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// Pods of berth's own engine would be nobody's.
func TestUninstallWithPods(t *testing.T) {
	n := newTestNode(t)
	w, first := n.wanted(), n.tree()
	w.Config = "default_runtime = \"crun\""
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(filepath.Join(n.root, recordsOfPods)), 0o755); err != nil {
		t.Fatal(err)
	}
	before := n.tree()
	n.write(recordsOfPods+"/abc/spec.json", "{}")
	n.pod("def", "kata")
	n.asked = nil
	if err := n.installer("").Uninstall(t.Context()); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "2 pods (abc, shop/def)") {
		t.Errorf("got %v", err)
	}
	if n.endpoint != ours || !n.running["berth"] {
		t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
	}
	// No more pods come to the engine, whatever the configuration said.
	if got := n.served(); !slices.Equal(got, []string{"containerd", "crun", "runc"}) || !slices.Contains(n.asked, "berth reload --wait -o json") {
		t.Errorf("the handlers are %v; asked was %q", got, n.asked)
	}
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "endpoint = ") {
		t.Errorf("crun is %s", got)
	}
	if got := n.read(extraFile); !strings.Contains(got, "no such file") {
		t.Errorf("the configuration has still %s", got)
	}
	if err := os.RemoveAll(filepath.Join(n.root, recordsOfPods)); err != nil {
		t.Fatal(err)
	}
	// Somebody wants it again.
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	journal := regexp.MustCompile("(?m)^" + journalFile + ".*$") // knows of more files that were written
	if was, is := journal.ReplaceAllString(before, ""), journal.ReplaceAllString(n.tree(), ""); was != is || n.endpoint != ours {
		t.Errorf("the node was\n%s\nand is\n%s", was, is)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(first)
}

// What is mounted in the daemon's directories is found where links lead to.
func TestMountedState(t *testing.T) {
	n := newTestNode(t)
	if err := os.Rename(filepath.Join(n.root, "var/lib"), filepath.Join(n.root, "data")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/data", filepath.Join(n.root, "var/lib")); err != nil {
		t.Fatal(err)
	}
	n.write("/data/berth/pods/file", "a pod's")
	n.write("/proc/self/mountinfo", "1 1 0:1 / "+filepath.Join(n.root, "data/berth/pods")+" rw - tmpfs tmpfs rw\n")
	step := &start{root: nodefs.Root(n.root), host: n}
	if err := step.removeState(t.Context(), "/var/lib/berth"); err != nil {
		t.Fatal(err)
	}
	if got := n.read("/data/berth/pods/file"); got != "a pod's" {
		t.Errorf("it is %s", got)
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

// An upgrade that fails takes nothing away that was there before it, also where the kubelet
// was not moved.
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
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			fail(n)
			w.Version = "1.1.0"
			if err := n.installer("").Install(t.Context(), w); err == nil {
				t.Error("it does not fail")
			}
			if !n.running["berth"] || n.version != "1.0.0" || !slices.Contains(n.served(), "kata") {
				t.Errorf("berth runs: %t, %q, with %v", n.running["berth"], n.version, n.served())
			}
			// Neither does a move of the kubelet that fails.
			n.fails, n.broken, n.doctor = map[string]error{}, "", ""
			w.Version, w.Kubelet = "1.0.0", true
			n.fails["systemctl restart kubelet.service"] = exited(1)
			if err := n.installer("").Install(t.Context(), w); err == nil {
				t.Error("the kubelet is restarted")
			}
			n.fails = map[string]error{}
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if n.endpoint != ours || !n.running["berth"] {
				t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
			}
			if err := n.installer("").Uninstall(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.as(before)
		})
	}
}

// What somebody has written to a file of ours is not lost when that is replaced, or removed.
func TestEditedFiles(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	edited := []string{configFile, extraFile, handlerFile("crun"), handlerFile("runc"), unitFile}
	for _, path := range edited {
		n.write(path, "# by hand: "+path+"\n")
	}
	w.Version, w.Config, w.Runtimes[0].Version = "1.1.0", "[metrics]\naddress = \"127.0.0.1:1\"", "1.25"
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve --more\n", 0o644)
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for _, path := range edited {
		if got := n.read(path); !strings.Contains(got, "berth") || strings.Contains(got, "by hand") {
			t.Errorf("%s is %q", path, got)
		}
		if got := n.read(path + nodefs.KeptSuffix); got != "# by hand: "+path+"\n" {
			t.Errorf("%s had been edited, and %q is kept", path, got)
		}
		if err := os.Remove(filepath.Join(n.root, path+nodefs.KeptSuffix)); err != nil {
			t.Fatal(err)
		}
	}
	n.write(handlerFile("kata"), "# by hand, too\n")
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.read(handlerFile("kata") + nodefs.KeptSuffix); got != "# by hand, too\n" {
		t.Errorf("it had been edited, and %q is kept", got)
	}
	if got := n.read(handlerFile("kata")); !strings.Contains(got, "no such file") {
		t.Errorf("it is left: %s", got)
	}
}
