// Package packaging installs the packages as an operator does: with dpkg, rpm, pacman
// and systemd-sysext, on a Debian that is this host's, under a layer that takes all changes.
package packaging

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// machine is a Debian of its own as far as files go: the host's root filesystem,
// and a layer above it, in a mount namespace that a sleeping process holds.
type machine struct {
	t      *testing.T
	root   string
	holder *exec.Cmd
}

const enter = `
mount --make-rprivate /
mount -t tmpfs layer "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount --rbind /sys "$1/root/sys"
mount -t tmpfs run "$1/root/run"
mount -t tmpfs tmp "$1/root/tmp"
mount -t tmpfs state "$1/root/var/lib" && mkdir "$1/root/var/lib/dpkg" && cp -a /var/lib/dpkg/. "$1/root/var/lib/dpkg"
echo ready
exec sleep infinity
`

func newMachine(t *testing.T) *machine {
	t.Helper()
	testbed.NeedRoot(t)
	for _, tool := range []string{"dpkg", "systemd-analyze"} {
		if _, err := exec.LookPath(tool); err != nil {
			testbed.Missing(t, "%s is missing: this test installs a package of Debian's kind; run `make deps`", tool)
		}
	}
	dir := t.TempDir()
	m := &machine{t: t, root: filepath.Join(dir, "root")}
	m.holder = exec.Command("sh", "-euc", enter, "sh", dir)
	m.holder.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	m.holder.Stderr = os.Stderr
	out, err := m.holder.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, m.holder.Start())
	t.Cleanup(func() {
		m.holder.Process.Kill() //nolint:errcheck // it is there: nobody waited for it
		m.holder.Wait()         //nolint:errcheck // killed
	})
	if line := make([]byte, len("ready\n")); true {
		if n, err := out.Read(line); err != nil || string(line[:n]) != "ready\n" {
			t.Fatalf("the machine was not made: %q, %v", line[:n], err)
		}
	}
	return m
}

// command runs there.
func (m *machine) command(name string, args ...string) *exec.Cmd {
	inside := append([]string{"--mount", fmt.Sprintf("--target=%d", m.holder.Process.Pid), "chroot", m.root, name}, args...)
	c := exec.CommandContext(m.t.Context(), "nsenter", inside...)
	c.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"}
	return c
}

func (m *machine) run(name string, args ...string) string {
	m.t.Helper()
	out, err := m.command(name, args...).CombinedOutput()
	if err != nil {
		m.t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// put brings a file into the machine.
func (m *machine) put(from, to string) {
	m.t.Helper()
	f, err := os.Open(from)
	if err != nil {
		m.t.Fatal(err)
	}
	defer f.Close()
	c := m.command("dd", "of="+to, "status=none")
	c.Stdin = f
	if out, err := c.CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
}

func (m *machine) has(path string) bool {
	return m.command("test", "-e", path).Run() == nil
}

// made is what all tests install, in two versions. What takes time is linking the programs, so
// that is done once.
var made struct {
	sync.Once
	dir string
	err error
}

// TestMain removes what was made.
func TestMain(m *testing.M) {
	status := m.Run()
	os.RemoveAll(made.dir)
	os.Exit(status)
}

// packages is the directory with all packages: two versions of those that are upgraded, the
// newer of the others.
func packages(t *testing.T) string {
	t.Helper()
	made.Do(func() {
		if made.dir, made.err = os.MkdirTemp("", "packages-"); made.err != nil {
			return
		}
		for _, args := range [][]string{{"deb", "rpm", "arch", "VERSION=1.0.0-rc.1"}, {"deb", "rpm", "arch", "apk", "sysext", "VERSION=1.0.0"}} {
			if made.err = build(made.dir, args...); made.err != nil {
				return
			}
		}
	})
	if made.err != nil {
		t.Fatal(made.err)
	}
	return made.dir
}

// build makes targets of the Makefile in a directory. Other tests run what is in ./bin.
func build(out string, args ...string) error {
	bin := filepath.Join(out, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return err
	}
	for _, tool := range []string{"nfpm", "image"} {
		builder, err := filepath.Abs("../../bin/" + tool)
		if err != nil {
			return err
		}
		if _, err := os.Stat(builder); err != nil {
			continue // it is built there
		}
		if err := os.Symlink(builder, filepath.Join(bin, tool)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	c := exec.Command("make", append([]string{"--no-print-directory", "OUT=" + out, "BIN=" + bin}, args...)...)
	c.Dir = "../.."
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("make %v: %w\n%s", args, err, text)
	}
	return nil
}

// one is the only file of that pattern.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s: got %v, %v", pattern, files, err)
	}
	return files[0]
}

// TestDebianPackage installs the package as a container image is made, where no
// systemd runs, and on a machine that has booted.
func TestDebianPackage(t *testing.T) {
	testbed.NeedRoot(t)
	out := packages(t)
	older, newer := one(t, out, "berth_1.0.0~rc.1_*.deb"), one(t, out, "berth_1.0.0_*.deb")
	t.Run("kubectl", func(t *testing.T) {
		operators(t, filepath.Join(filepath.Dir(newer), "kubectl-"+filepath.Base(newer)))
	})
	t.Run("files", func(t *testing.T) { files(t, older, newer) })
	t.Run("systemd", func(t *testing.T) { underSystemd(t, older, newer) })
}

func files(t *testing.T, older, newer string) {
	m := newMachine(t)
	m.put(older, "/tmp/older.deb")
	m.put(newer, "/tmp/newer.deb")

	m.run("dpkg", "-i", "/tmp/older.deb")
	if got := m.run("dpkg-query", "-W", "-f", "${Status} ${Version}", "berth"); got != "install ok installed 1.0.0~rc.1" {
		t.Errorf("installed: %s", got)
	}
	if got := m.run("berth", "version"); !strings.Contains(got, "1.0.0-rc.1") {
		t.Errorf("berth version: %s", got)
	}
	// A package that links text/template in again adds 6 MB: see newRoot of cmd/berth. With
	// gRPC, berth-shim would have 8.2 MB.
	for program, most := range map[string]int{"berth": 40_000_000, "berth-shim": 7_500_000} {
		if size, err := strconv.Atoi(strings.TrimSpace(m.run("stat", "-Lc", "%s", "/usr/bin/"+program))); err != nil || size > most {
			t.Errorf("%s has %d bytes, %v; at most %d", program, size, err, most)
		}
	}
	m.run("berth", "check")
	for _, unit := range []string{"berth.service", "berth-checkpoint-prune.service", "berth-checkpoint-prune.timer"} {
		m.run("systemd-analyze", "verify", "/usr/lib/systemd/system/"+unit)
	}
	m.run("bash", "-n", "/usr/share/bash-completion/completions/berth")
	for _, path := range []string{"/etc/berth/conf.d", "/usr/lib/berth/conf.d", "/usr/share/berth/crictl.yaml", "/usr/share/man/man8/berth.8.gz", "/usr/share/doc/berth/copyright"} {
		if !m.has(path) {
			t.Errorf("%s is missing", path)
		}
	}
	m.serves(t)

	const edited = "/etc/berth/config.toml"
	m.run("sh", "-c", "echo '# ours' >> "+edited)
	if out := m.run("dpkg", "-i", "/tmp/newer.deb"); !strings.Contains(out, "Unpacking berth (1.0.0) over (1.0.0~rc.1)") {
		t.Errorf("the newer version is not newer to dpkg: %s", out)
	}
	if got := m.run("tail", "-n", "1", edited); got != "# ours\n" {
		t.Errorf("the upgrade has taken the operator's configuration: it ends with %q", got)
	}

	// What berth says of its handlers goes with it, and what others say stays.
	const features = "/etc/kubernetes/node-feature-discovery/features.d"
	m.run("sh", "-c", "mkdir -p "+features+" && touch "+features+"/berth "+features+"/berth-present "+features+"/others")
	m.run("dpkg", "-r", "berth")
	if m.has(features+"/berth") || m.has(features+"/berth-present") || !m.has(features+"/others") {
		t.Error("removed: the labels of handlers are left, or those of others are not")
	}
	if m.has("/usr/bin/berth") || !m.has(edited) {
		t.Error("removed: the programs are left, or the configuration is not")
	}
	if out := m.run("dpkg", "-P", "berth"); !strings.Contains(out, "/var/lib/berth is left") {
		t.Errorf("purged: it says nothing of what is left: %s", out)
	}
	if m.has("/etc/berth") || m.has("/usr/lib/berth") || m.has("/usr/share/berth") {
		t.Error("purged: something is left")
	}
}

// operators installs the package that is not for nodes.
func operators(t *testing.T, file string) {
	m := newMachine(t)
	m.put(file, "/tmp/kubectl-berth.deb")
	m.run("dpkg", "-i", "/tmp/kubectl-berth.deb")
	if got := m.run("kubectl-berth", "--version"); !strings.Contains(got, "kubectl berth version 1.0.0\n") {
		t.Errorf("it says %q", got)
	}
	if got := m.run("kubectl_complete-berth", "gen"); !strings.HasPrefix(got, "generate\t") {
		t.Errorf("it completes %q", got)
	}
	for _, path := range []string{"/usr/share/man/man1/kubectl-berth.1.gz", "/usr/share/man/man1/kubectl-berth-generate.1.gz", "/usr/share/doc/kubectl-berth/copyright"} {
		if !m.has(path) {
			t.Errorf("%s is missing", path)
		}
	}
	if m.has("/usr/bin/berth") {
		t.Error("it brings the daemon along")
	}
	m.run("dpkg", "-r", "kubectl-berth")
	if m.has("/usr/bin/kubectl-berth") {
		t.Error("removed: the program is left")
	}
}

// serves runs the installed daemon as its unit does, asks it for its version
// through its default socket, and ends it.
func (m *machine) serves(t *testing.T) {
	t.Helper()
	daemon := m.command("berth", "serve")
	var log strings.Builder
	daemon.Stdout, daemon.Stderr = &log, &log
	testbed.Must(t, daemon.Start())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	conn, err := grpc.NewClient("unix:///run/berth/berth.sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			path := fmt.Sprintf("/proc/%d/root%s/run/berth/berth.sock", m.holder.Process.Pid, m.root)
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}))
	testbed.Must(t, err)
	defer conn.Close()
	testbed.Eventually(t, 30*time.Second, func() error {
		v, err := runtimeapi.NewRuntimeServiceClient(conn).Version(t.Context(), &runtimeapi.VersionRequest{})
		if err == nil && v.GetRuntimeVersion() != "1.0.0-rc.1" {
			err = fmt.Errorf("the installed daemon is %v", v)
		}
		return err
	})
	testbed.Must(t, daemon.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the installed daemon ended with %v:\n%s", err, log.String())
		}
	case <-time.After(30 * time.Second):
		daemon.Process.Kill() //nolint:errcheck // the test has failed
		t.Error("the installed daemon does not end")
	}
}
