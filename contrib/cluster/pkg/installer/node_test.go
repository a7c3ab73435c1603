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

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/kubeletconf"
)

const (
	theirs = "unix:///run/containerd/containerd.sock"
	ours   = kubeletconf.Berth
)

// node is a root directory with real files, and fakes systemd and berth as far as the installer calls
// them. integration/packaging uses the real ones.
type node struct {
	t       *testing.T
	root    string
	payload string
	// running has the services that run; endpoint is that with which the kubelet was started.
	running  map[string]bool
	endpoint string
	asked    []string
	// fails has the errors of commands; doctor is a further finding of `berth doctor`.
	fails  map[string]error
	doctor string
	// forbidden is the cluster's answer, and refused counts such answers.
	forbidden error
	refused   int
	// dead is whether the other CRI daemon does not answer; others are endpoints of more daemons.
	dead   bool
	others []string
	// broken is a version of berth that does not start.
	broken string
	// version is the version of berth that runs, started the configuration with which it was started.
	version string
	started string
	// at is called at each place of a run, and before and after each command.
	at func(place string)
}

func newTestNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, root: t.TempDir(), payload: t.TempDir(), running: map[string]bool{"containerd": true, "kubelet": true}, fails: map[string]error{}}
	for path, text := range map[string]string{
		kubeletconf.Config:                        "# ours\nkind: KubeletConfiguration\ncontainerRuntimeEndpoint: " + theirs + "\n",
		"/var/lib/kubelet/kubeadm-flags.env":      "KUBELET_KUBEADM_ARGS=\"--container-runtime-endpoint=" + theirs + "\"\n",
		"/usr/lib/systemd/system/kubelet.service": "[Service]\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS\n",
		"/etc/containerd/config.toml":             "version = 3\n",
	} {
		n.write(path, text)
	}
	test.Must(t, os.MkdirAll(filepath.Join(n.root, "opt"), 0o755))
	test.Must(t, os.MkdirAll(filepath.Join(n.root, "run"), 0o755))
	test.Must(t, os.Chmod(filepath.Join(n.root, kubeletconf.Config), 0o600))
	for _, name := range []string{"bin/berth", "bin/berth-shim", "bin/berth-pause"} {
		writeFile(t, filepath.Join(n.payload, name), name, 0o755)
	}
	writeFile(t, filepath.Join(n.payload, "berth.service"), "[Service]\nExecStart=/usr/bin/berth serve\n", 0o644)
	test.Must(t, os.MkdirAll(filepath.Join(n.root, "etc/systemd/system"), 0o755))
	n.endpoint = n.kubeletEndpoint()
	return n
}

func writeFile(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	test.Must(t, os.WriteFile(path, []byte(text), mode))
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

// kubeletEndpoint is the endpoint that a kubelet would read from its files.
func (n *node) kubeletEndpoint() string {
	if m := regexp.MustCompile(`(?m)^ExecStart=.*--container-runtime-endpoint=(\S+)$`).FindStringSubmatch(n.read(kubeletconf.DropIn)); m != nil {
		return m[1]
	}
	if m := regexp.MustCompile(`--container-runtime-endpoint=([^\s"]+)`).FindStringSubmatch(n.read("/var/lib/kubelet/kubeadm-flags.env")); m != nil {
		return m[1]
	}
	dropIns, _ := filepath.Glob(filepath.Join(n.root, "/etc/kubernetes/kubelet.conf.d/*.conf"))
	for _, file := range dropIns {
		if m := regexp.MustCompile(`(?m)^containerRuntimeEndpoint: (\S+)$`).FindStringSubmatch(n.read(strings.TrimPrefix(file, n.root))); m != nil {
			return m[1]
		}
	}
	if m := regexp.MustCompile(`(?m)^containerRuntimeEndpoint: (\S+)$`).FindStringSubmatch(n.read(kubeletconf.Config)); m != nil {
		return m[1]
	}
	return ""
}

// served returns the handlers in berth's configuration files.
func (n *node) served() []string {
	var names []string
	files, _ := filepath.Glob(filepath.Join(n.root, dropIns, "*.toml"))
	files = append([]string{filepath.Join(n.root, configFile)}, files...)
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
func (n *node) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	command := strings.Join(append([]string{filepath.Base(name)}, args...), " ")
	n.passes("before " + command)
	defer n.passes("after " + command)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	n.asked = append(n.asked, command)
	if err := n.fails[command]; err != nil {
		return nil, err
	}
	enabled := filepath.Join(n.root, "/etc/systemd/system/multi-user.target.wants/berth.service")
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
		n.started = n.read(extraFile)
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
	case "systemctl stop berth.service":
		n.running["berth"] = false
	case "systemctl disable berth.service":
		os.Remove(enabled)
		os.Remove(filepath.Dir(enabled))
	case "systemctl restart kubelet.service":
		n.endpoint = n.kubeletEndpoint()
	case "systemctl cat kubelet.service":
		const unit = "/usr/lib/systemd/system/kubelet.service"
		out := "# " + unit + "\n" + n.read(unit)
		if text := n.read(kubeletconf.DropIn); !strings.Contains(text, "no such file") {
			out += "\n# " + kubeletconf.DropIn + "\n" + text
		}
		return []byte(out), nil
	case "berth reload --wait -o json":
		if !n.running["berth"] {
			return nil, exited(1)
		}
		if was, is := n.started, n.read(extraFile); was != is {
			return []byte(`{"accepted":true,"needsRestart":["metrics.address: waits"]}`), nil
		}
		return []byte(`{"accepted":true}`), nil
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
		n.t.Errorf("unexpected command %q", command)
	}
	return nil, nil
}

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
		return errors.New("berth does not answer the kubelet")
	}
	return nil
}

// Ask implements Backend.
func (n *node) Ask(_ context.Context, endpoint string) (Beside, error) {
	if slices.Contains(n.others, endpoint) {
		return Beside{}, nil
	}
	if endpoint != theirs {
		n.t.Errorf("unexpected call of the daemon at %s", endpoint)
	}
	if n.dead {
		return Beside{}, errors.New("connection refused")
	}
	return Beside{Handlers: []string{"crun", "runc"}, CgroupDriver: "cgroupfs"}, nil
}

// passes is called at each place at which a run of the installer may be interrupted.
func (n *node) passes(place string) {
	if n.at != nil {
		n.at(place)
	}
}

func (n *node) installer() *Installer {
	n.t.Helper()
	return New(Installer{Root: n.root, Payload: n.payload, Self: filepath.Join(n.payload, "bin/berth-pause"), Host: n, Cluster: n, Backend: n, at: n.passes})
}

func (n *node) install(w Wanted) error { return n.installer().Install(n.t.Context(), w) }
func (n *node) uninstall() error       { return n.installer().Uninstall(n.t.Context()) }

// interrupted is the panic by which killed ends a run.
type interrupted string

// killed runs f and kills it at the place with this number. It returns whether f had that place. Only
// what f has written to disk is left.
func (n *node) killed(place int, f func() error) (was bool) {
	n.t.Helper()
	defer func() {
		n.at = nil
		if r := recover(); r != nil {
			if _, was = r.(interrupted); !was {
				panic(r)
			}
		}
	}()
	n.at = func(name string) {
		if place--; place < 0 {
			n.at = nil
			panic(interrupted(name))
		}
	}
	_ = f()
	return false
}

// tree lists every file with its mode, owner and content.
func (n *node) tree() string {
	n.t.Helper()
	var lines []string
	test.Must(n.t, filepath.WalkDir(n.root, func(path string, entry fs.DirEntry, err error) error {
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
	}))
	return strings.Join(lines, "\n")
}

func (n *node) as(before string) {
	n.t.Helper()
	if now := n.tree(); now != before {
		n.t.Errorf("the node was\n%s\nbut is now\n%s", before, now)
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

// pod writes the record of a pod of berth's engine, in the namespace shop.
func (n *node) pod(name, handler string) {
	n.t.Helper()
	config, err := proto.Marshal(&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "shop"}})
	test.Must(n.t, err)
	text, err := json.Marshal(map[string]any{"handler": handler, "definition": map[string]string{"name": handler}, "config": config})
	test.Must(n.t, err)
	n.write(filepath.Join(recordsOfPods, name, "spec.json"), string(text))
}
