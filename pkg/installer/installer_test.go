package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// node is a root directory with real files, and as much of systemd and berth as answers
// what the installer asks. integration/packaging has the real ones.
type node struct {
	t       *testing.T
	root    string
	payload string
	// running says which services run, endpoint what the kubelet was started with.
	running  map[string]bool
	endpoint string
	asked    []string
	// fails has commands fail, doctor is what it finds beside the kubelet's endpoint.
	fails  map[string]error
	doctor string
	// forbidden is what the cluster says, and refused how often.
	forbidden error
	refused   int
	// dead is the other CRI daemon.
	dead bool
	// broken is a version that does not start.
	broken string
	// version is what the daemon is that runs.
	version string
	// turns is how often the turn was taken, held says that it is.
	turns int
	held  bool
	// waits is called while it is another node's.
	waits func()
}

func newTestNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir(), payload: t.TempDir(), running: map[string]bool{"containerd": true, "kubelet": true}, fails: map[string]error{}}
	for path, text := range map[string]string{
		kubeletConfig:                             "# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + theirs + "\n",
		"/var/lib/kubelet/kubeadm-flags.env":      "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + theirs + "\"\n",
		"/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet\n",
		"/etc/containerd/config.toml":             "version = 3\n",
	} {
		n.write(path, text)
	}
	if err := os.MkdirAll(filepath.Join(n.root, "opt"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(n.root, "run"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(n.root, kubeletConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bin/berth", "bin/berth-shim", "bin/berth-pause"} {
		writeFile(t, filepath.Join(n.payload, name), name, 0o755)
	}
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve\n", 0o644)
	n.endpoint = n.kubeletEndpoint()
	return n
}

func writeFile(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

func (n *node) write(path, text string) {
	n.t.Helper()
	writeFile(n.t, filepath.Join(n.root, path), text, 0o644)
}

func (n *node) read(path string) string {
	text, err := os.ReadFile(filepath.Join(n.root, path))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// kubeletEndpoint is what a kubelet would take from the files.
func (n *node) kubeletEndpoint() string {
	if v := flagValue(n.read("/var/lib/kubelet/kubeadm-flags.env"), endpointFlags[0]); v != "" {
		return v
	}
	return yamlValue(n.read(kubeletConfig), endpointKeys[0])
}

// served are the handlers of the files, and whether each leads to another daemon.
func (n *node) served() []string {
	var names []string
	files, _ := filepath.Glob(filepath.Join(n.root, dropIns, "*.toml"))
	for _, f := range files {
		text, _ := os.ReadFile(f)
		for _, m := range regexp.MustCompile(`\[runtimes\."?([^\]"]+)"?\]`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	return names
}

type exited int

func (s exited) Error() string { return fmt.Sprintf("exit status %d", int(s)) }
func (s exited) ExitCode() int { return int(s) }

// Run implements Host.
func (n *node) Run(_ context.Context, name string, args ...string) ([]byte, error) {
	command := strings.Join(append([]string{filepath.Base(name)}, args...), " ")
	n.asked = append(n.asked, command)
	if err := n.fails[command]; err != nil {
		return nil, err
	}
	enabled := filepath.Join(n.root, "/etc/systemd/system/multi-user.target.wants/berth.service")
	armed := filepath.Join(n.root, units, "timers.target.wants", rescueTimer)
	switch command {
	case "systemctl daemon-reload", "berth check", "restorecon -R /opt/berth":
	case "systemctl enable berth.service":
		if err := os.MkdirAll(filepath.Dir(enabled), 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink(unitFile, enabled); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	case "systemctl is-active --quiet berth.service":
		if !n.running["berth"] {
			return nil, exited(3)
		}
	case "systemctl restart berth.service":
		n.version, _ = os.Readlink(filepath.Join(n.root, current))
		if n.broken != "" && n.version == n.broken {
			return nil, exited(1)
		}
		n.running["berth"] = true
		n.write("/var/lib/berth/records/format", "1")
		n.write("/run/berth/berth.sock", "")
		for _, file := range labelFiles {
			if _, err := os.Stat(filepath.Join(n.root, filepath.Dir(file))); err == nil {
				n.write(file, "handler.crun=ready")
			}
		}
		if _, err := os.Stat(filepath.Join(n.root, program)); err != nil {
			return nil, err
		}
	case "systemctl disable --now berth.service":
		n.running["berth"] = false
		os.Remove(enabled)
		os.Remove(filepath.Dir(enabled))
	case "systemctl enable --now " + rescueTimer:
		n.running["rescue"] = true
		if err := os.MkdirAll(filepath.Dir(armed), 0o755); err != nil {
			return nil, err
		}
		if err := os.Symlink(units+"/"+rescueTimer, armed); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	case "systemctl disable --now " + rescueTimer:
		n.running["rescue"] = false
		os.Remove(armed)
		os.Remove(filepath.Dir(armed))
	case "systemctl restart kubelet.service":
		n.endpoint = n.kubeletEndpoint()
	case "berth reload --wait":
		if !n.running["berth"] {
			return nil, exited(1)
		}
	case "berth handlers -o json":
		var list []string
		for _, h := range n.served() {
			state := "STATE_READY"
			if strings.Contains(n.read(handlerFile(h)), "/broken") {
				state = "STATE_NOT_READY"
			}
			list = append(list, fmt.Sprintf(`{"name":%q,"state":%q,"isDefault":%t}`, h, state, h == "containerd"))
		}
		return []byte(`{"handlers":[` + strings.Join(list, ",") + `]}`), nil
	case "berth doctor -o json":
		findings := []string{`{"check":"config","level":"ok"}`}
		if n.endpoint != ours {
			findings = append(findings, `{"check":"kubelet","level":"fail","text":"elsewhere"}`)
		}
		if n.doctor != "" {
			findings = append(findings, n.doctor)
		}
		return []byte(`{"findings":[` + strings.Join(findings, ",") + `]}`), exited(3)
	default:
		n.t.Errorf("nobody expects %q", command)
	}
	return nil, nil
}

// Turn implements Cluster.
func (n *node) Turn(context.Context) error {
	if n.waits != nil {
		n.waits()
	}
	n.turns++
	n.held = true
	return nil
}

// Done implements Cluster.
func (n *node) Done() { n.held = false }

// MayAsk implements Cluster.
func (n *node) MayAsk(context.Context) error { return n.forbidden }

// Serves implements Cluster.
func (n *node) Serves(_ context.Context, berth bool) error {
	if n.forbidden != nil {
		n.refused++
		return n.forbidden
	}
	if (n.endpoint == ours) != berth {
		return fmt.Errorf("the kubelet uses %s", n.endpoint)
	}
	if berth && !n.running["berth"] {
		return errors.New("nobody answers the kubelet")
	}
	return nil
}

// Ask implements Backend.
func (n *node) Ask(_ context.Context, endpoint string) (Beside, error) {
	if endpoint != theirs {
		n.t.Errorf("%s is asked", endpoint)
	}
	if n.dead {
		return Beside{}, errors.New("nobody listens")
	}
	return Beside{Handlers: []string{"crun", "runc"}, CgroupDriver: "cgroupfs"}, nil
}

// installer is interrupted at a place if that is not "".
func (n *node) installer(place string) *Installer {
	n.t.Helper()
	i, err := New(Installer{Root: n.root, Payload: n.payload, Self: filepath.Join(n.payload, "bin/berth-pause"), Host: n, Cluster: n, Backend: n, at: func(now string) {
		if now == place {
			panic(interrupted(now))
		}
	}})
	if err != nil {
		n.t.Fatal(err)
	}
	return i
}

type interrupted string

// killed says whether f was interrupted. What it had on disk by then is all that is left.
func killed(f func()) (was bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, was = r.(interrupted); !was {
				panic(r)
			}
		}
	}()
	f()
	return false
}

// tree is every file with its permissions and content.
func (n *node) tree() string {
	n.t.Helper()
	var lines []string
	err := filepath.WalkDir(n.root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := ""
		switch {
		case info.Mode().IsRegular():
			text = n.read(strings.TrimPrefix(path, n.root))
		case info.Mode()&fs.ModeSymlink != 0:
			text, _ = os.Readlink(path)
		}
		st, _ := info.Sys().(*syscall.Stat_t)
		lines = append(lines, fmt.Sprintf("%s %v %d %q", strings.TrimPrefix(path, n.root), info.Mode(), st.Uid, text))
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func (n *node) as(before string) {
	n.t.Helper()
	if now := n.tree(); now != before {
		n.t.Errorf("the node was\n%s\nand is\n%s", before, now)
	}
	if n.running["rescue"] {
		n.t.Error("the rescue is left")
	}
	if n.running["berth"] || n.endpoint != theirs {
		n.t.Errorf("berth runs: %t; the kubelet uses %s", n.running["berth"], n.endpoint)
	}
}

func (n *node) wanted() Wanted {
	dir := n.t.TempDir()
	writeFile(n.t, filepath.Join(dir, "crun"), "crun 1.24", 0o755)
	kata := n.t.TempDir()
	writeFile(n.t, filepath.Join(kata, "bin/containerd-shim-kata-v2"), "shim", 0o755)
	writeFile(n.t, filepath.Join(kata, "share/defaults/kata-containers/configuration.toml"), "path = \"/opt/kata/bin/qemu\"\n", 0o644)
	return Wanted{Version: "1.0.0", Kubelet: true, Config: "[metrics]\naddress = \"\"", Runtimes: []Runtime{
		{Handler: "crun", Kind: "crun", Version: "1.24", Source: dir},
		{Handler: "kata", Kind: "kata", Version: "3.2", Source: kata},
	}}
}

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
		kubeletConfig:             "# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + ours + "\n",
		configFile:                "# Written by berth-installer.\nversion = 1\ndefault_runtime = \"containerd\"\n\n[engine]\ncgroup_driver = \"cgroupfs\"\n",
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
	if info, err := os.Stat(filepath.Join(n.root, kubeletConfig)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the kubelet's configuration may be read by others: %v, %v", info.Mode(), err)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// places are all at which an installation and its undoing come by.
func places(t *testing.T) (doing, undoing []string) {
	t.Helper()
	n := newTestNode(t)
	w := n.wanted()
	i := n.installer("")
	i.at = func(place string) { doing = append(doing, place) }
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	i.at = func(place string) { undoing = append(undoing, place) }
	if err := i.Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(doing) < 25 || len(undoing) < 14 {
		t.Fatalf("places: %v, %v", doing, undoing)
	}
	return slices.Compact(doing), slices.Compact(undoing)
}

// TestInterrupted kills an installation at every place. The next one finishes it, or an
// uninstallation undoes it.
func TestInterrupted(t *testing.T) {
	doing, undoing := places(t)
	for _, place := range doing {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			for name, next := range map[string]func(*Installer, Wanted) error{
				"finished": func(i *Installer, w Wanted) error { return i.Install(t.Context(), w) },
				"undone":   func(i *Installer, _ Wanted) error { return i.Uninstall(t.Context()) },
			} {
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				if !killed(func() { _ = n.installer(place).Install(t.Context(), w) }) {
					t.Fatal("it was not interrupted")
				}
				if err := next(n.installer(""), w); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if name == "finished" {
					if n.endpoint != ours {
						t.Errorf("the kubelet uses %s", n.endpoint)
					}
					if err := n.installer("").Uninstall(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				n.as(before)
			}
		})
	}
	for _, place := range undoing {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			n := newTestNode(t)
			w, before := n.wanted(), n.tree()
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if !killed(func() { _ = n.installer(place).Uninstall(t.Context()) }) {
				t.Fatal("it was not interrupted")
			}
			// Somebody wants it again, and gets it as a whole.
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			if n.endpoint != ours {
				t.Errorf("the kubelet uses %s", n.endpoint)
			}
			if !killed(func() { _ = n.installer(place).Uninstall(t.Context()) }) {
				t.Fatal("it was not interrupted")
			}
			if err := n.installer("").Uninstall(t.Context()); err != nil {
				t.Fatal(err)
			}
			n.as(before)
		})
	}
}

// TestInterruptedUpgrade kills an upgrade at every place. The next run finishes it, or goes back
// to the version before, which runs as well when the new one turns out to be no good.
func TestInterruptedUpgrade(t *testing.T) {
	upgraded := func(t *testing.T) (*node, Wanted, string) {
		t.Helper()
		n := newTestNode(t)
		w, before := n.wanted(), n.tree()
		if err := n.installer("").Install(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		w.Version = "1.1.0"
		w.Config += "\n# more"
		return n, w, before
	}
	var places []string
	n, w, _ := upgraded(t)
	i := n.installer("")
	i.at = func(place string) { places = append(places, place) }
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(places, "installer.start.half") || !slices.Contains(places, "installer.start.run") {
		t.Fatalf("places: %v", places)
	}
	for _, place := range slices.Compact(places) {
		for name, c := range map[string]struct {
			version string
			change  func(*node)
			fails   string
		}{
			"finished":  {"1.1.0", func(*node) {}, ""},
			"back":      {"1.0.0", func(*node) {}, ""},
			"not green": {"1.1.0", func(n *node) { n.doctor = `{"check":"handlers","level":"fail"}` }, "1.0.0"},
			"no start":  {"1.1.0", func(n *node) { n.broken = "1.1.0" }, "1.0.0"},
		} {
			t.Run(place+"/"+name, func(t *testing.T) {
				t.Parallel()
				n, w, before := upgraded(t)
				if !killed(func() { _ = n.installer(place).Install(t.Context(), w) }) {
					t.Fatal("it was not interrupted")
				}
				c.change(n)
				w.Version = c.version
				want := c.version
				if err := n.installer("").Install(t.Context(), w); err != nil {
					want = c.fails
				}
				if link, err := os.Readlink(filepath.Join(n.root, current)); n.version != want || link != want {
					t.Errorf("version %q runs, %q is current (%v), want %q", n.version, link, err, want)
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
}

// A write that was killed leaves its new file, which keeps nothing from being as it was.
func TestRestoreAfterKilledWrite(t *testing.T) {
	n := newTestNode(t)
	i, before := n.installer(""), n.tree()
	o, err := i.snapshot(configFile)
	if err != nil {
		t.Fatal(err)
	}
	n.write(filepath.Join(filepath.Dir(configFile), "."+filepath.Base(configFile)+".new"), "half")
	if err := i.restore(o); err != nil {
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

// Links of the node lead to files of the node, not of who looks at it from outside.
func TestLinksOfTheNode(t *testing.T) {
	n := newTestNode(t)
	i := n.installer("")
	for link, target := range map[string]string{"/var/run": "/run", "/up": "../../../../run", "/opt/there": "/usr/lib"} {
		if err := os.Symlink(target, filepath.Join(n.root, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"/var/run/crio/crio.sock": "/run/crio/crio.sock", "/up/x": "/run/x", "/opt/there/new": "/usr/lib/new", "/var/run": "/var/run", "/none/x": "/none/x",
	} {
		if got := i.path(path); got != filepath.Join(n.root, want) {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	// A unit that is enabled by a link has its flags where that leads.
	n.write("/usr/lib/kubelet.service", "ExecStart=/usr/bin/kubelet --container-runtime-endpoint="+theirs+"\n")
	if err := os.MkdirAll(filepath.Join(n.root, "/etc/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/lib/kubelet.service", filepath.Join(n.root, "/etc/systemd/system/kubelet.service")); err != nil {
		t.Fatal(err)
	}
	k, err := i.findKubelet()
	if err != nil || flagValue(k.texts["/etc/systemd/system/kubelet.service"], endpointFlags[0]) != theirs {
		t.Errorf("got %+v, %v", k, err)
	}
}

func TestSources(t *testing.T) {
	n := newTestNode(t)
	i := n.installer("")
	n.write("/usr/bin/crun-1.8", "crun")
	n.write("/usr/bin/plain/crun", "crun")
	if err := os.Chmod(filepath.Join(n.root, "/usr/bin/crun-1.8"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/usr/bin/crun-1.8", filepath.Join(n.root, "/usr/bin/crun")); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ kind, source, want, wrong string }{
		"a program":         {"crun", "/usr/bin/crun", "/usr/bin/crun-1.8", ""},
		"a directory":       {"crun", "/usr/bin", "/usr/bin/crun-1.8", ""},
		"another name":      {"runc", "/usr/bin/crun", "", "is not called runc"},
		"not there":         {"crun", "/usr/sbin", "", "no such file"},
		"none in it":        {"runsc", "/usr/bin", "", "has no runsc"},
		"not executable":    {"crun", "/usr/bin/plain", "", "is not executable"},
		"Kata is no file":   {"kata", "/usr/bin/crun", "", "is a file; a kata is a directory with bin/containerd-shim-kata-v2"},
		"Kata without shim": {"kata", "/usr/bin", "", "has no bin/containerd-shim-kata-v2"},
	} {
		t.Run(name, func(t *testing.T) {
			b := &broughtRuntime{i: i, r: Runtime{Handler: "h", Kind: c.kind, Source: n.root + c.source}}
			got, err := b.source(kinds[c.kind])
			if c.wrong == "" && (err != nil || got != n.root+c.want) || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("got %q, %v", got, err)
			}
		})
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

// A runtime that cannot run pods goes, and berth stays.
func TestRuntimeFailed(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	broken := w.Runtimes[0]
	broken.Handler = "broken"
	w.Runtimes = append([]Runtime{broken}, w.Runtimes...)
	i := n.installer("")
	i.patience = 0
	err := i.Install(t.Context(), w)
	if err == nil || !strings.Contains(err.Error(), "handler broken is not ready") {
		t.Errorf("got %v", err)
	}
	if got := n.served(); !slices.Equal(got, []string{"containerd", "crun", "kata", "runc"}) {
		t.Errorf("the handlers are %v", got)
	}
	if _, err := os.Stat(filepath.Join(n.root, "/opt/berth/runtimes/broken")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its files are left: %v", err)
	}
}

// Somebody ends the pod meanwhile: nothing is undone, and the next run goes on.
func TestEnded(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	ctx, end := context.WithCancel(t.Context())
	i := n.installer("")
	i.at = func(place string) {
		if place == "installer.kubelet.restarted" {
			end()
			n.running["berth"] = false // it does not answer at once
		}
	}
	if err := i.Install(ctx, w); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if n.endpoint != ours {
		t.Errorf("the kubelet uses %s", n.endpoint)
	}
	n.running["berth"] = true
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A runtime comes, changes and goes while the node has berth: the kubelet is not touched.
func TestRuntimesLive(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	all := w.Runtimes
	w.Runtimes = nil
	install := func() {
		t.Helper()
		if err := n.installer("").Install(t.Context(), w); err != nil {
			t.Fatal(err)
		}
	}
	install()
	n.asked = nil
	w.Runtimes = all
	install()
	w.Runtimes = slices.Clone(all)
	w.Runtimes[0].Version = "1.25"
	install()
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "/1.25/crun") {
		t.Errorf("crun is %s", got)
	}
	if n.read("/opt/berth/runtimes/crun/1.24/crun") != "crun 1.24" {
		t.Error("the pods of the older version have lost it")
	}
	w.Runtimes = all[1:]
	install()
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "endpoint = ") {
		t.Errorf("crun does not lead to the other daemon again: %s", got)
	}
	for _, command := range n.asked {
		if strings.Contains(command, "kubelet") || strings.Contains(command, "restart") {
			t.Errorf("%q was asked for", command)
		}
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
	if got := n.served(); !slices.Equal(got, []string{"containerd", "crun", "runc"}) || !slices.Contains(n.asked, "berth reload --wait") {
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

// pod writes the record of a pod of the engine, in the namespace shop.
func (n *node) pod(name, handler string) {
	n.t.Helper()
	config, err := proto.Marshal(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "shop"}})
	if err != nil {
		n.t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"handler": handler, "definition": map[string]string{"name": handler}, "config": config})
	if err != nil {
		n.t.Fatal(err)
	}
	n.write(filepath.Join(recordsOfPods, name, "spec.json"), string(text))
}

// A runtime's files stay while pods of the engine need them, also where the handler leads to the
// other daemon again, and is ready.
func TestRuntimeWithPods(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	n.pod("def", "crun")
	w.Runtimes = w.Runtimes[1:]
	if err := n.installer("").Install(t.Context(), w); !errors.Is(err, ErrPods) || !strings.Contains(err.Error(), "1 pod (shop/def)") {
		t.Errorf("got %v", err)
	}
	if got := n.read("/opt/berth/runtimes/crun/1.24/crun"); got != "crun 1.24" {
		t.Errorf("the pod has lost its runtime: %s", got)
	}
	if err := os.RemoveAll(filepath.Join(n.root, recordsOfPods)); err != nil {
		t.Fatal(err)
	}
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(n.root, "/opt/berth/runtimes/crun")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("its files are left: %v", err)
	}
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
	if err := n.installer("").removeState(t.Context(), "/var/lib/berth"); err != nil {
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

// A kubelet that uses berth keeps it, whoever has moved it: without berth it has no runtime.
func TestKubeletLeftWithBerth(t *testing.T) {
	for name, c := range map[string]struct {
		moved  bool
		change func(*node)
		wrong  string
	}{
		"by hand": {false, func(n *node) {
			n.write(kubeletConfig, "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+ours+"\n")
		}, kubeletConfig},
		"by hand, without a scheme": {false, func(n *node) {
			n.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint=/var/run/berth/berth.sock\n")
		}, "/etc/default/kubelet"},
		"by a package's unit": {false, func(n *node) {
			n.write("/usr/lib/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet --container-runtime-endpoint="+ours+"\n")
		}, "/usr/lib/systemd/system/kubelet.service"},
		"on its command line": {false, func(n *node) {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint\x00"+ours)
		}, "command line"},
		"in a configuration of another name": {false, func(n *node) {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--config=/etc/kubelet.conf")
			n.write("/etc/kubelet.conf", "kind: KubeletConfiguration\ncontainerRuntimeEndpoint: "+ours+"\n")
		}, "/etc/kubelet.conf"},
		"without a service": {false, func(n *node) {
			if err := os.Remove(filepath.Join(n.root, "/usr/lib/systemd/system/kubelet.service")); err != nil {
				n.t.Fatal(err)
			}
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint="+ours)
		}, "command line"},
		"kubeadm upgrade, its file": {true, func(n *node) {
			n.write(instanceConfig, "containerRuntimeEndpoint: "+ours+"\n")
		}, instanceConfig},
		"kubeadm upgrade, a flag": {true, func(n *node) {
			n.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--container-runtime-endpoint="+ours+"\n")
		}, "/etc/default/kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			w := n.wanted()
			w.Kubelet = c.moved
			if err := n.installer("").Install(t.Context(), w); err != nil {
				t.Fatal(err)
			}
			c.change(n)
			before := n.tree()
			err := n.installer("").Uninstall(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.wrong) || !strings.Contains(err.Error(), "try again") {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
			if n.tree() != before || !n.running["berth"] {
				t.Errorf("something is undone: berth runs: %t", n.running["berth"])
			}
		})
	}
}

// A kubelet is back when its command line is, too.
func TestKubeletComesBackWithBerth(t *testing.T) {
	n := newTestNode(t)
	if err := n.installer("").Install(t.Context(), n.wanted()); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	i := n.installer("")
	i.at = func(place string) {
		if place == "installer.kubelet.restored" {
			n.write("/proc/7/comm", "kubelet\n")
			n.write("/proc/7/cmdline", "kubelet\x00--container-runtime-endpoint="+ours)
			end()
		}
	}
	if err := i.Uninstall(ctx); err == nil || !strings.Contains(err.Error(), "command line") {
		t.Errorf("got %v", err)
	}
	if !n.running["berth"] {
		t.Error("berth is stopped")
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

// A runtime's next version that cannot run pods is not used: the one before is.
func TestRuntimesNextVersionFailed(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	w.Runtimes[0].Version = "broken-1.25"
	i := n.installer("")
	i.patience = 0
	if err := i.Install(t.Context(), w); err == nil || !strings.Contains(err.Error(), "handler crun is not ready") {
		t.Errorf("got %v", err)
	}
	if got := n.read(dropIns + "/50-crun.toml"); !strings.Contains(got, "/1.24/crun") || n.asked[len(n.asked)-1] == "berth handlers -o json" {
		t.Errorf("crun is %s, after %q", got, n.asked[len(n.asked)-1])
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A kubelet does not go back to a daemon that is away.
func TestNowhereToGoBackTo(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	moved := n.tree()
	n.dead = true
	away := func(err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "start it, and try again") {
			t.Errorf("got %v", err)
		}
		if n.endpoint != ours || !n.running["berth"] {
			t.Errorf("the kubelet uses %s; berth runs: %t", n.endpoint, n.running["berth"])
		}
	}
	impatient := func() *Installer {
		i := n.installer("")
		i.patience = 0
		return i
	}
	away(impatient().Uninstall(t.Context()))
	if n.tree() != moved {
		t.Error("something is undone")
	}
	w.Kubelet = false
	away(impatient().Install(t.Context(), w))
	if n.tree() != moved {
		t.Error("something is undone")
	}
	n.dead = false
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)

	// It dies while the kubelet is moved, and that fails.
	w.Kubelet = true
	i := impatient()
	i.at = func(place string) {
		if place == "installer.kubelet.restarted" {
			n.dead, n.doctor = true, `{"check":"handlers","level":"fail"}`
		}
	}
	away(i.Install(t.Context(), w))
	n.dead, n.doctor = false, ""
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// TestRescue has a move interrupted at every place, and no pod start again: the node's own
// timer has the kubelet use what it used before.
func TestRescue(t *testing.T) {
	doing, undoing := places(t)
	for _, c := range []struct {
		places []string
		first  func(*Installer, Wanted) error
	}{
		{doing, func(*Installer, Wanted) error { return nil }},
		{undoing, func(i *Installer, w Wanted) error { return i.Install(t.Context(), w) }},
	} {
		for _, place := range c.places {
			if !strings.HasPrefix(place, "installer.kubelet.") {
				continue
			}
			t.Run(place, func(t *testing.T) {
				t.Parallel()
				n := newTestNode(t)
				w, before := n.wanted(), n.tree()
				if err := c.first(n.installer(""), w); err != nil {
					t.Fatal(err)
				}
				if !killed(func() {
					_ = errors.Join(n.installer(place).Install(t.Context(), w), n.installer(place).Uninstall(t.Context()))
				}) {
					t.Fatal("it was not interrupted")
				}
				// Files that lead to berth have the timer, over a reboot as well.
				if n.kubeletEndpoint() == ours && place != "installer.kubelet.made" && place != "installer.kubelet.done" && place != "installer.kubelet.undoing" {
					if link, err := os.Readlink(filepath.Join(n.root, units, "timers.target.wants", rescueTimer)); err != nil || n.read(link) == "" || n.read(rescueProgram) != "bin/berth-pause" {
						t.Errorf("the node is not rescued: %q, %v", link, err)
					}
				}
				if err := n.installer("").Rescue(t.Context()); err != nil {
					t.Fatal(err)
				}
				if want := map[bool]string{true: ours, false: theirs}[place == "installer.kubelet.done"]; n.endpoint != want || n.kubeletEndpoint() != want {
					t.Errorf("the kubelet uses %s, want %s", n.endpoint, want)
				}
				if n.running["rescue"] {
					t.Error("the rescue is left")
				}
				if err := n.installer("").Install(t.Context(), w); err != nil {
					t.Fatal(err)
				}
				if n.endpoint != ours {
					t.Errorf("the kubelet uses %s", n.endpoint)
				}
				if err := n.installer("").Uninstall(t.Context()); err != nil {
					t.Fatal(err)
				}
				n.as(before)
			})
		}
	}
}

// Two runs on one node wait for each other, and the rescue does not get between.
func TestLocked(t *testing.T) {
	n := newTestNode(t)
	w := n.wanted()
	i := n.installer("")
	i.at = func(place string) {
		if place != "installer.kubelet.written" {
			return
		}
		if err := n.installer("").Rescue(t.Context()); err != nil {
			t.Error(err)
		}
		ctx, end := context.WithCancel(t.Context())
		end()
		for _, run := range []error{n.installer("").Install(ctx, w), n.installer("").Uninstall(ctx)} {
			if !errors.Is(run, context.Canceled) {
				t.Errorf("got %v", run)
			}
		}
		if n.kubeletEndpoint() != ours {
			t.Error("another run has undone what this one does")
		}
	}
	if err := i.Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
}

// A journal that cannot be written, as on a full disk, keeps nothing from being undone.
func TestUndoneWithoutRoom(t *testing.T) {
	n := newTestNode(t)
	before := n.tree()
	if err := n.installer("").Install(t.Context(), n.wanted()); err != nil {
		t.Fatal(err)
	}
	n.write(filepath.Join(filepath.Dir(journalFile), ".journal.json.new", "in the way"), "")
	w := n.wanted()
	w.Kubelet = false
	if err := n.installer("").Install(t.Context(), w); err == nil || !strings.Contains(err.Error(), "write the journal") {
		t.Errorf("got %v", err)
	}
	if n.endpoint != theirs {
		t.Errorf("the kubelet uses %s", n.endpoint)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
}

// A right that is missing is noticed before the kubelet is moved, and is not asked for over and over.
func TestForbidden(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	if err := n.installer("").Install(t.Context(), w); err == nil || !strings.Contains(err.Error(), "cannot get nodes") {
		t.Errorf("got %v", err)
	}
	n.as(before)
	if slices.Contains(n.asked, "systemctl restart kubelet.service") {
		t.Error("the kubelet was restarted")
	}
	n.forbidden = nil
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	n.forbidden = fmt.Errorf("cannot get nodes: %w", ErrFinal)
	if err := n.installer("").Uninstall(t.Context()); err == nil || n.refused != 1 {
		t.Errorf("got %v after %d questions", err, n.refused)
	}
}

// A node that waits for its turn is rescued meanwhile, and then made as it is wanted.
func TestRescuedWhileWaiting(t *testing.T) {
	n := newTestNode(t)
	w, before := n.wanted(), n.tree()
	if !killed(func() { _ = n.installer("installer.kubelet.restarted").Install(t.Context(), w) }) {
		t.Fatal("it was not interrupted")
	}
	n.waits = func() {
		if err := n.installer("").Rescue(t.Context()); err != nil {
			t.Error(err)
		}
		if n.endpoint != theirs {
			t.Errorf("the kubelet uses %s", n.endpoint)
		}
	}
	if err := n.installer("").Install(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	n.waits = nil
	if n.endpoint != ours || n.running["rescue"] || n.held {
		t.Errorf("the kubelet uses %s; the rescue is left: %t; the turn is held: %t", n.endpoint, n.running["rescue"], n.held)
	}
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.as(before)
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
		if got := n.read(path + keptSuffix); got != "# by hand: "+path+"\n" {
			t.Errorf("%s had been edited, and %q is kept", path, got)
		}
		if err := os.Remove(filepath.Join(n.root, path+keptSuffix)); err != nil {
			t.Fatal(err)
		}
	}
	n.write(handlerFile("kata"), "# by hand, too\n")
	if err := n.installer("").Uninstall(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := n.read(handlerFile("kata") + keptSuffix); got != "# by hand, too\n" {
		t.Errorf("it had been edited, and %q is kept", got)
	}
	if got := n.read(handlerFile("kata")); !strings.Contains(got, "no such file") {
		t.Errorf("it is left: %s", got)
	}
}
