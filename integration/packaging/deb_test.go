// Package packaging installs the packages as an operator does: with dpkg, rpm, pacman and
// systemd-sysext, on the file system of this Debian host, through an overlay, so that the host's
// files do not change.
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

// machine is a Debian without running services: an overlay of the host's root file system, in a
// mount namespace that a sleeping process keeps.
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
			testbed.Missing(t, "%s is missing: this test installs a Debian package; run `make deps`", tool)
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
		m.holder.Process.Kill() //nolint:errcheck // it exists until Wait
		m.holder.Wait()         //nolint:errcheck // killed
	})
	if line := make([]byte, len("ready\n")); true {
		if n, err := out.Read(line); err != nil || string(line[:n]) != "ready\n" {
			t.Fatalf("make the machine: %q, %v", line[:n], err)
		}
	}
	return m
}

// command is a command that runs on the machine.
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

// put copies a file of the host to the machine.
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

// made is the directory of the packages that tests install. They are built only once, because
// linking the programs takes long.
var made struct {
	sync.Once
	dir string
	err error
}

// TestMain removes the packages after the tests.
func TestMain(m *testing.M) {
	status := m.Run()
	os.RemoveAll(made.dir)
	os.Exit(status)
}

// packages returns the directory with all packages: two versions of those whose upgrade is tested,
// only the newer one of the others.
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

// build makes targets of the Makefile in a directory, and not in ./bin, whose files other tests run.
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
			continue // make builds it
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

// one returns the only file that matches a pattern.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s matches %v, %v, want one file", pattern, files, err)
	}
	return files[0]
}

// TestDebianPackage installs the package where no systemd runs, as in the build of a container
// image, and on a machine that has booted.
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
		t.Errorf("dpkg reports %q after the installation", got)
	}
	if got := m.run("berth", "version"); !strings.Contains(got, "1.0.0-rc.1") {
		t.Errorf("berth version prints %s", got)
	}
	// If an import links text/template in again, berth grows by 6 MB: see newRoot of cmd/berth. With
	// gRPC, berth-shim would have 8.2 MB.
	for program, most := range map[string]int{"berth": 40_000_000, "berth-shim": 7_500_000} {
		if size, err := strconv.Atoi(strings.TrimSpace(m.run("stat", "-Lc", "%s", "/usr/bin/"+program))); err != nil || size > most {
			t.Errorf("%s has %d bytes, %v, want at most %d", program, size, err, most)
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
		t.Errorf("dpkg does not upgrade to the newer version: %s", out)
	}
	if got := m.run("tail", "-n", "1", edited); got != "# ours\n" {
		t.Errorf("the upgrade replaced the operator's configuration, which now ends with %q", got)
	}

	// The removal deletes berth's feature files, and no others.
	const features = "/etc/kubernetes/node-feature-discovery/features.d"
	m.run("sh", "-c", "mkdir -p "+features+" && touch "+features+"/berth "+features+"/berth-present "+features+"/others")
	m.run("dpkg", "-r", "berth")
	if m.has(features+"/berth") || m.has(features+"/berth-present") || !m.has(features+"/others") {
		t.Error("after the removal a feature file of berth is left, or another one is missing")
	}
	if m.has("/usr/bin/berth") || !m.has(edited) {
		t.Error("after the removal a program is left, or the configuration is missing")
	}
	if out := m.run("dpkg", "-P", "berth"); !strings.Contains(out, "/var/lib/berth is left") {
		t.Errorf("the purge does not report that /var/lib/berth is left: %s", out)
	}
	if m.has("/etc/berth") || m.has("/usr/lib/berth") || m.has("/usr/share/berth") {
		t.Error("after the purge a directory of the package is left")
	}
}

// operators installs the package with kubectl-berth, which is not for nodes.
func operators(t *testing.T, file string) {
	m := newMachine(t)
	m.put(file, "/tmp/kubectl-berth.deb")
	m.run("dpkg", "-i", "/tmp/kubectl-berth.deb")
	if got := m.run("kubectl-berth", "--version"); !strings.Contains(got, "kubectl berth version 1.0.0\n") {
		t.Errorf("kubectl-berth --version prints %q", got)
	}
	if got := m.run("kubectl_complete-berth", "gen"); !strings.HasPrefix(got, "generate\t") {
		t.Errorf("kubectl_complete-berth prints %q", got)
	}
	for _, path := range []string{"/usr/share/man/man1/kubectl-berth.1.gz", "/usr/share/man/man1/kubectl-berth-generate.1.gz", "/usr/share/doc/kubectl-berth/copyright"} {
		if !m.has(path) {
			t.Errorf("%s is missing", path)
		}
	}
	if m.has("/usr/bin/berth") {
		t.Error("the package of kubectl-berth has the daemon")
	}
	m.run("dpkg", "-r", "kubectl-berth")
	if m.has("/usr/bin/kubectl-berth") {
		t.Error("after the removal the program is left")
	}
}

// serves runs the installed daemon as its unit does, requests its version through its default
// socket, and stops it.
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
			err = fmt.Errorf("the installed daemon reports the version %v", v)
		}
		return err
	})
	testbed.Must(t, daemon.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the installed daemon exited with %v:\n%s", err, log.String())
		}
	case <-time.After(30 * time.Second):
		daemon.Process.Kill() //nolint:errcheck // the test has failed
		t.Error("the installed daemon does not exit after SIGTERM")
	}
}
