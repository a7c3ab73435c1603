package packaging

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// need skips a test if it does not run as root, or if a program is missing.
func need(t *testing.T, tools ...string) {
	t.Helper()
	testbed.NeedRoot(t)
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			testbed.Missing(t, "%s is missing; run `make deps`", tool)
		}
	}
}

// TestVersionsOfPackages compares the order of versions with that of dpkg and rpm.
func TestVersionsOfPackages(t *testing.T) {
	need(t, "dpkg", "rpm")
	sorted := []string{"0.0.0-dev+1b80d4ae", "1.0.0-alpha.2", "1.0.0-beta.1", "1.0.0-rc.1", "1.0.0-rc.2", "1.0.0", "1.0.1-3-g1b80d4ae", "1.0.1", "1.10.0"}
	before := map[string]func(a, b string) bool{
		"deb": func(a, b string) bool { return exec.Command("dpkg", "--compare-versions", a, "lt", b).Run() == nil },
		"rpm": func(a, b string) bool {
			return prints("-1", "rpm", "--eval", `%{lua:print(rpm.vercmp("`+a+`", "`+b+`"))}`)
		},
	}
	for kind, less := range before {
		t.Run(kind, func(t *testing.T) {
			for i := range sorted[1:] {
				a, b := packageVersion(t, kind, sorted[i]), packageVersion(t, kind, sorted[i+1])
				if !less(a, b) {
					t.Errorf("%s is not older than %s", a, b)
				}
			}
		})
	}
	// Debian has neither apk nor Arch's vercmp; manuals define these versions.
	for kind, versions := range map[string]map[string]string{
		"apk":  {"1.0.0": "1.0.0", "1.0.0-rc.1": "1.0.0_rc1", "1.0.0-alpha": "1.0.0_alpha", "1.0.1-3-g1b80d4ae": "1.0.1_pre3", "0.0.0-dev+1b80d4ae": "0.0.0_pre"},
		"arch": {"1.0.0": "1.0.0", "1.0.0-rc.1": "1.0.0rc.1", "1.0.1-3-g1b80d4ae": "1.0.1pre3_g1b80d4ae", "0.0.0-dev+1b80d4ae": "0.0.0dev+1b80d4ae"},
	} {
		for version, want := range versions {
			testbed.Same(t, packageVersion(t, kind, version), want, "the version of %s for %s is", version, kind)
		}
	}
}

func prints(want, name string, args ...string) bool {
	out, err := exec.Command(name, args...).Output()
	return err == nil && strings.TrimSpace(string(out)) == want
}

func packageVersion(t *testing.T, kind, version string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "../../scripts/package-version", kind, version).Output()
	testbed.Must(t, err)
	return strings.TrimSpace(string(out))
}

// manager has the commands of a package manager.
type manager struct {
	install, remove []string
	// kept is the path of a changed configuration after a removal.
	kept string
}

// life installs, upgrades and removes a package on a machine that runs systemd.
func life(t *testing.T, s *system, m manager, older, newer string) {
	t.Helper()
	for path, from := range map[string]string{"/tmp/older": older, "/tmp/newer": newer} {
		text, err := os.ReadFile(from)
		testbed.Must(t, err)
		s.file(path+"-"+filepath.Base(from), string(text))
	}
	install := func(path string) {
		s.run(m.install[0], append(slices.Clone(m.install[1:]), path)...)
	}
	install("/tmp/older-" + filepath.Base(older))
	s.is("disabled", "systemctl", "is-enabled", "berth")
	s.is("inactive", "systemctl", "is-active", "berth")
	s.run("berth", "check")
	s.run("bash", "-n", "/usr/share/bash-completion/completions/berth")
	s.run("test", "-e", "/usr/share/zsh/site-functions/_berth")
	s.run("test", "-d", "/etc/berth/conf.d")

	s.file("/etc/berth/conf.d/one.toml", "[runtimes.one]\nruntime_path = \"/usr/bin/crun.own\"\n")
	s.run("cp", testbed.Part(t, testbed.Crun), "/usr/bin/crun.own")
	s.run("sh", "-c", "echo '# ours' >>/etc/berth/config.toml")
	s.run("systemctl", "enable", "--now", "berth")
	pid := s.unit("MainPID")

	install("/tmp/newer-" + filepath.Base(newer))
	s.otherPID(pid)
	if got := s.run("berth", "status"); !strings.HasPrefix(got, "berth 1.0.0 ") {
		t.Errorf("after the upgrade berth status prints %s", got)
	}
	s.is("enabled", "systemctl", "is-enabled", "berth")
	s.is("# ours", "tail", "-n", "1", "/etc/berth/config.toml")

	const features = "/etc/kubernetes/node-feature-discovery/features.d"
	s.run("sh", "-c", "mkdir -p "+features+" && touch "+features+"/berth "+features+"/others")
	out := s.run(m.remove[0], m.remove[1:]...)
	if !strings.Contains(out, "/var/lib/berth is left") {
		t.Errorf("the removal does not report that /var/lib/berth is left: %s", out)
	}
	s.is("inactive", "systemctl", "is-active", "berth")
	s.run("test", "!", "-e", "/etc/systemd/system/multi-user.target.wants/berth.service")
	s.run("test", "!", "-e", "/usr/bin/berth")
	s.run("test", "!", "-e", features+"/berth")
	s.run("test", "-e", features+"/others")
	s.is("# ours", "tail", "-n", "1", m.kept)
	s.run("rm", "-r", "/etc/berth", "/var/lib/berth")
}

// TestRPM installs with rpm itself. On Debian its database has no package that provides /bin/sh,
// and it installs only with --force-debian.
func TestRPM(t *testing.T) {
	need(t, "rpm")
	out := packages(t)
	s := bootSystem(t)
	life(t, s, manager{
		install: []string{"rpm", "--force-debian", "--nodeps", "-U"},
		remove:  []string{"rpm", "--force-debian", "-e", "berth"},
		kept:    "/etc/berth/config.toml.rpmsave",
	}, one(t, out, "berth-1.0.0~rc.1-1.*.rpm"), one(t, out, "berth-1.0.0-1.*.rpm"))
}

// TestArch installs with pacman itself.
func TestArch(t *testing.T) {
	need(t, "pacman")
	out := packages(t)
	s := bootSystem(t)
	s.run("ln", "-sf", "bash", "/bin/sh") // as on Arch, where /bin/sh is bash
	s.run("mkdir", "-p", "/var/lib/pacman", "/var/cache/pacman/pkg")
	s.file("/etc/pacman.conf", "[options]\nArchitecture = auto\nSigLevel = Never\nLocalFileSigLevel = Never\n")
	life(t, s, manager{
		install: []string{"pacman", "-U", "--noconfirm", "--nodeps", "--nodeps"},
		remove:  []string{"pacman", "-R", "--noconfirm", "berth"},
		kept:    "/etc/berth/config.toml.pacsave",
	}, one(t, out, "berth-1.0.0rc.1-1-*.pkg.tar.zst"), one(t, out, "berth-1.0.0-1-*.pkg.tar.zst"))
}

// TestAlpinePackage unpacks the package and runs its scripts by the shell of busybox, which is also
// Alpine's. Debian has no apk, so the package's dependencies are not tested.
func TestAlpinePackage(t *testing.T) {
	testbed.NeedRoot(t)
	file := one(t, packages(t), "berth_1.0.0_*.apk")
	root := t.TempDir()
	untar(t, file, root)
	for _, path := range []string{"etc/init.d/berth", "etc/berth/conf.d", "etc/berth/config.toml", "usr/bin/berth-shim", "usr/bin/berth-pause", "usr/share/zsh/site-functions/_berth"} {
		if _, err := os.Stat(filepath.Join(root, path)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "usr/lib/systemd")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the package has a unit of systemd: %v", err)
	}
	busybox := testbed.Part(t, testbed.BusyboxBinary)
	text, err := os.ReadFile(busybox)
	testbed.Must(t, err)
	inside := func(args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), "chroot", append([]string{root}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	write := func(path, text string) {
		t.Helper()
		path = filepath.Join(root, path)
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		testbed.Must(t, os.WriteFile(path, []byte(text), 0o755))
	}
	write("bin/busybox", string(text))
	inside("/bin/busybox", "--install", "-s", "/bin")
	if got := inside("/usr/bin/berth", "version"); !strings.Contains(got, "1.0.0") {
		t.Errorf("berth version prints %s", got)
	}
	inside("/bin/sh", "-n", "/etc/init.d/berth")

	// Without OpenRC the scripts do nothing, else they call rc-service and rc-update.
	for _, script := range []string{".post-upgrade", ".pre-deinstall"} {
		inside("/bin/sh", "/"+script, "1.0.0_rc1")
	}
	write("dev/null", "")
	write("run/openrc/softlevel", "default")
	write("sbin/rc-service", "#!/bin/sh\necho rc-service \"$@\" >>/asked\n")
	write("sbin/rc-update", "#!/bin/sh\necho rc-update \"$@\" >>/asked\n")
	write("etc/kubernetes/node-feature-discovery/features.d/berth", "")
	write("var/lib/berth/image", "")
	inside("/bin/sh", "-c", "PATH=/sbin:/bin sh /.post-upgrade && PATH=/sbin:/bin sh /.pre-deinstall")
	if got := inside("/bin/sh", "-c", "sh /.post-deinstall 2>&1"); !strings.Contains(got, "/var/lib/berth is left") {
		t.Errorf("the removal does not report that /var/lib/berth is left: %s", got)
	}
	asked, err := os.ReadFile(filepath.Join(root, "asked"))
	if want := "rc-service --ifstarted berth restart\nrc-service --ifstarted berth stop\nrc-update -q delete berth --all\n"; err != nil || string(asked) != want {
		t.Errorf("the calls of OpenRC are %q, want %q; %v", asked, want, err)
	}
	if _, err := os.Stat(filepath.Join(root, "etc/kubernetes/node-feature-discovery/features.d/berth")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the feature file of the handlers is left: %v", err)
	}
}

// untar unpacks the streams of an apk, which follow each other in one file.
func untar(t *testing.T, file, root string) {
	t.Helper()
	f, err := os.Open(file)
	testbed.Must(t, err)
	defer f.Close()
	zr, err := gzip.NewReader(f)
	testbed.Must(t, err)
	for tr := tar.NewReader(zr); ; {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		testbed.Must(t, err)
		path := filepath.Join(root, header.Name)
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, 0o755)
		case tar.TypeReg:
			err = unpackFile(path, header.FileInfo().Mode(), tr)
		default:
			t.Fatalf("%s is neither a file nor a directory", header.Name)
		}
		testbed.Must(t, err)
	}
}

func unpackFile(path string, mode os.FileMode, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}

// TestSystemExtension merges the extension into the /usr of a machine that runs systemd, starts
// berth, unmerges the extension, and merges it again as at a boot. The image is unpacked first,
// because a machine in namespaces has no loop devices.
func TestSystemExtension(t *testing.T) {
	need(t, "mksquashfs", "unsquashfs", "systemd-sysext")
	file := one(t, packages(t), "berth_1.0.0_*.raw")
	dir := filepath.Join(t.TempDir(), "berth")
	if out, err := exec.CommandContext(t.Context(), "unsquashfs", "-no-progress", "-d", dir, file).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || !slices.Equal(left, []string{filepath.Join(dir, "usr")}) {
		t.Fatalf("an extension may have /usr only, this one has %v: %v", left, err)
	}
	s := bootSystem(t)
	s.run("mkdir", "-p", "/var/lib/extensions")
	s.put(t, dir, "/var/lib/extensions")
	s.run("mount", "--make-rshared", "/") // systemd-sysext merges in its own mount namespace
	s.run("systemd-sysext", "merge")
	s.run("systemctl", "daemon-reload")
	s.run("systemd-tmpfiles", "--create", "berth.conf")
	s.run("berth", "check")
	s.file("/etc/berth/conf.d/one.toml", "[runtimes.one]\nruntime_path = \"/opt/crun\"\n")
	s.run("mkdir", "-p", "/opt")
	s.run("cp", testbed.Part(t, testbed.Crun), "/opt/crun")
	s.run("systemctl", "enable", "--now", "berth")
	if got := s.run("berth", "status"); !strings.HasPrefix(got, "berth 1.0.0 ") {
		t.Errorf("berth status prints %s", got)
	}
	s.run("systemctl", "disable", "--now", "berth")
	s.run("systemd-sysext", "unmerge")
	s.run("test", "!", "-e", "/usr/bin/berth")

	// At a boot systemd begins to start enabled units before the extension is merged.
	s.run("systemctl", "daemon-reload")
	s.run("systemctl", "start", "multi-user.target")
	s.run("systemd-sysext", "merge")
	s.run("systemctl", "daemon-reload")
	testbed.Eventually(t, soon, func() error {
		if out, err := s.command("systemctl", "is-active", "berth").CombinedOutput(); err != nil {
			return errors.New(string(out))
		}
		return nil
	})
}

// put copies a directory of the host to the machine.
func (s *system) put(t *testing.T, dir, to string) {
	t.Helper()
	pack := exec.CommandContext(t.Context(), "tar", "-C", filepath.Dir(dir), "-c", filepath.Base(dir))
	out, err := pack.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, pack.Start())
	unpack := s.command("tar", "-C", to, "-x")
	unpack.Stdin = out
	if text, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	testbed.Must(t, pack.Wait())
}
