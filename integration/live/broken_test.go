package live

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// refusal runs a pod of a handler, which must fail with this code, and returns the error's message.
func (b *bed) refusal(t *testing.T, handler string, code codes.Code) string {
	t.Helper()
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: handler})
	if status.Code(err) != code {
		t.Errorf("run a pod of handler %s: %v, want %s", handler, err, code)
	}
	return status.Convert(err).Message()
}

// says fails unless a text contains all words.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("the text lacks %q: %s", word, text)
		}
	}
}

// degraded returns the output of `berth status`, whose exit status must be that of a degraded node.
func (b *bed) degraded(t *testing.T) string {
	t.Helper()
	out, code := b.try(t, "status")
	if code != 3 {
		t.Errorf("berth status exits with %d, want 3: %s", code, out)
	}
	return out
}

// try runs a command of berth, and returns its output and exit status.
func (b *bed) try(t *testing.T, arguments ...string) (string, int) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), arguments...)
	command.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(b.Dir, "admin.sock"))
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return out.String(), command.ProcessState.ExitCode()
}

// A daemon that starts with broken handlers serves the others, reports the reason for each broken
// one, and uses each without a restart once it is repaired.
func TestPainABrokenHandlerStopsTheDaemon(t *testing.T) {
	b := newBed(t)
	pod := b.pod(t, "runc")
	missing, liar := filepath.Join(b.Dir, "missing"), filepath.Join(b.Dir, "liar")
	copyFile(t, "/bin/false", liar)
	b.DropIn(t, "20-broken", table("missing", missing)+table("liar", liar)+
		table("spec", testbed.Part(t, testbed.Runc))+"base_runtime_spec = \"/nowhere/spec.json\"\n")
	b.Restart(t)
	works(t, b, pod)
	b.pod(t, "").Remove(t)
	told := b.degraded(t)
	for name, word := range map[string]string{"missing": missing, "liar": liar, "spec": "/nowhere/spec.json"} {
		t.Run(name, func(t *testing.T) {
			says(t, b.waitState(t, name, "not-ready").Reason, word)
			if listed, ready := b.advertised(t, name); listed || ready {
				t.Errorf("in Status the handler is listed: %v, all handlers are ready: %v, want neither", listed, ready)
			}
			says(t, b.refusal(t, name, codes.Unavailable), name, word)
			says(t, told, "handler "+name+" is not ready: ", word)
		})
	}
	copyFile(t, testbed.Part(t, testbed.Runc), missing)
	b.waitState(t, "missing", "ready")
	works(t, b, b.pod(t, "missing"))
	b.remove(t, b.DropInPath("20-broken"))
	b.waitState(t, "liar", "")
}

// The error for an unknown handler lists the existing ones, the one that was probably meant, and
// what to do.
func TestPainUnknownHandlerErrorsHelpNobody(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "gvisor", table("gvisor", testbed.Part(t, testbed.Runsc)))
	b.waitState(t, "gvisor", "ready")
	text := b.refusal(t, "gvisr", codes.InvalidArgument)
	says(t, text, `unknown runtime handler "gvisr"`, `did you mean "gvisor"?`, "gvisor, runc (default)",
		"RuntimeClass", "[runtimes.gvisr]", `"berth check"`)
	// The error has no address of the daemon's memory, and is short.
	if strings.Contains(text, "0xc0") || len(text) > 1024 {
		t.Errorf("the error is %s", text)
	}
}

// A key with a typo is an error at any level. Each command that reads or shows the configuration
// reports its place and the key that was probably meant.
func TestPainConfigTyposAreIgnored(t *testing.T) {
	b := newBed(t)
	pod := b.pod(t, "runc")
	for name, c := range map[string]struct{ text, at, key, meant string }{
		"in a handler": {"[runtimes.own]\nruntime_path = \"/bin/true\"\nsnapshoter = \"native\"\n", ":3:1", "runtimes.own.snapshoter", "snapshotter"},
		"in a table":   {"[handlers]\nprobe_intervall = \"5s\"\n", ":2:1", "handlers.probe_intervall", "probe_interval"},
		"of a table":   {"[runtime.own]\nruntime_path = \"/bin/true\"\n", ":1:2", "runtime", "runtimes"},
	} {
		t.Run(name, func(t *testing.T) {
			b.DropIn(t, "90-typo", c.text)
			want := []string{b.DropInPath("90-typo") + c.at + ": " + c.key + ": ", "did you mean \"" + c.meant + "\"?"}
			out, code := b.try(t, "reload", "--wait")
			if code != 2 {
				t.Errorf("berth reload --wait exits with %d, want 2", code)
			}
			says(t, out, want...)
			says(t, b.degraded(t), want...)
			out, code = b.try(t, "check", "-c", b.DropInPath("90-typo"))
			if code != 2 {
				t.Errorf("berth check exits with %d, want 2", code)
			}
			says(t, out, want...)
			works(t, b, pod)
			b.remove(t, b.DropInPath("90-typo"))
			if out, code := b.try(t, "reload", "--wait"); code != 0 {
				t.Errorf("after the correction berth reload --wait exits with %d: %s", code, out)
			}
		})
	}
}

// write replaces a file of the configuration.
func write(t *testing.T, path, text string) {
	t.Helper()
	testbed.Must(t, os.WriteFile(path, []byte(text), 0o600))
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	testbed.Must(t, err)
	return string(text)
}

// A mistake in a configuration file does not keep a killed daemon from starting. At each start the
// daemon uses the whole last accepted configuration, and reports the mistake.
func TestPainABadFileKeepsTheDaemonFromStarting(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "20-other", table("other", testbed.Part(t, testbed.Crun)))
	b.waitState(t, "other", "ready")
	pod := b.pod(t, "runc")
	main := read(t, b.ConfigFile)
	before, _, _ := strings.Cut(main, "[engine]")
	for name, c := range map[string]struct{ path, text, place string }{
		"a typo in the main file":       {b.ConfigFile, main + "\n[log]\nlevl = \"info\"\n", b.ConfigFile + ":"},
		"a truncated main file":         {b.ConfigFile, before + "[engine]\nroot = \"/half", b.ConfigFile + ":"},
		"a missing main file":           {b.ConfigFile, "", b.ConfigFile + ": the file does not exist"},
		"a truncated drop-in":           {b.DropInPath("30-half"), "[runtimes.half]\nruntime_path = \"/usr/bin/ru", b.DropInPath("30-half") + ":2:"},
		"a typo in an accepted drop-in": {b.DropInPath("20-other"), "[runtimes.other]\nruntime_pth = \"/x\"\n", b.DropInPath("20-other") + ":2:1: runtimes.other.runtime_pth: unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			b.Kill9(t)
			was, absent := os.ReadFile(c.path)
			write(t, c.path, c.text)
			if c.text == "" {
				b.remove(t, c.path)
			}
			// A new drop-in is not used until the mistake in the other file is corrected.
			b.DropIn(t, "40-new", table("new", testbed.Part(t, testbed.Crun)))
			b.Start(t)
			b.rejected(t, c.place)
			works(t, b, pod)
			for _, handler := range []string{"runc", "other"} {
				b.pod(t, handler).Remove(t)
			}
			b.refusal(t, "new", codes.InvalidArgument)
			b.Restart(t)
			b.rejected(t, c.place)
			if absent == nil {
				write(t, c.path, string(was))
			} else {
				b.remove(t, c.path)
			}
			b.accepted(t)
			b.pod(t, "new").Remove(t)
			works(t, b, pod)
			b.remove(t, b.DropInPath("40-new"))
			b.waitState(t, "new", "")
			// A reload saves its configuration for the next start only after its handlers have changed.
			if out, code := b.try(t, "reload", "--wait"); code != 0 {
				t.Fatalf("after the correction berth reload --wait exits with %d: %s", code, out)
			}
		})
	}
}

// rejected fails unless status, doctor, reload and events, the metric and the log report that the
// configuration has a mistake. The first three commands must also report its place.
func (b *bed) rejected(t *testing.T, place string) {
	t.Helper()
	says(t, b.degraded(t), "problem: "+place, "the configuration was rejected at ", "stays in use: correct the files, then run \"berth reload --wait\"")
	out, code := b.try(t, "doctor", "-c", b.ConfigFile, "--drop-in-dir", filepath.Join(b.Dir, "conf.d"), "--vendor-dir", filepath.Join(b.Dir, "vendor.d"))
	if code != 3 {
		t.Errorf("berth doctor exits with %d, want 3", code)
	}
	says(t, out, "fail  config: "+place)
	if out, code = b.try(t, "reload", "--wait"); code != 2 {
		t.Errorf("berth reload --wait exits with %d, want 2", code)
	}
	says(t, out, place)
	if got := b.metric(t, "berth_config_last_reload_successful"); got != "0" {
		t.Errorf("berth_config_last_reload_successful is %s, want 0", got)
	}
	says(t, b.Log(), "Configuration rejected; the last accepted one stays in use", "trigger=start")
	if out, code = b.try(t, "events"); code != 0 || !strings.Contains(out, "rejected") {
		t.Errorf("berth events exits with %d, want 0 and a rejection: %s", code, out)
	}
}

// accepted reloads the corrected configuration, and fails unless it is accepted.
func (b *bed) accepted(t *testing.T) {
	t.Helper()
	for _, command := range [][]string{{"reload", "--wait"}, {"status"}} {
		if out, code := b.try(t, command...); code != 0 {
			t.Errorf("after the correction berth %s exits with %d: %s", command[0], code, out)
		}
	}
	if got := b.metric(t, "berth_config_last_reload_successful"); got != "1" {
		t.Errorf("berth_config_last_reload_successful is %s, want 1", got)
	}
}

// On a machine without KVM, a handler that Kata's installer has set up is not ready, with a reason
// that names the file. Other handlers work.
func TestPainKataWithoutKVMIsAdvertised(t *testing.T) {
	hide(t, "/dev/kvm")
	b := newBed(t)
	pod := b.pod(t, "runc")
	kata := filepath.Join(b.Dir, "kata")
	shim := filepath.Join(kata, "bin", "containerd-shim-kata-v2")
	for _, path := range []string{shim, filepath.Join(kata, "share", "defaults", "kata-containers", "x")} {
		testbed.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	}
	// This program answers as a shim does, so that only the device is missing.
	copyFile(t, testbed.Part(t, testbed.RuncShim), shim)
	for _, name := range []string{"clh", "qemu-tdx", "qemu-snp"} {
		path := filepath.Join(kata, "share", "defaults", "kata-containers", "configuration-"+name+".toml")
		testbed.Must(t, os.WriteFile(path, []byte("[hypervisor]\n"), 0o600))
	}
	// No subtests: only this thread and the processes that it starts have a /dev without the device.
	for name, file := range map[string]string{"crio": "kata-crio/99-kata-deploy", "containerd": "kata-containerd/kata-deploy.toml"} {
		text, err := os.ReadFile("../../pkg/config/testdata/import/" + file)
		testbed.Must(t, err)
		dir := t.TempDir()
		written := filepath.Join(dir, filepath.Base(file))
		b.DropIn(t, "70-import", fmt.Sprintf("[import]\n%s = [%q]\n", name, dir))
		// The installer's file, with another path of Kata.
		testbed.Must(t, os.WriteFile(written, bytes.ReplaceAll(text, []byte("/opt/kata"), []byte(kata)), 0o600))
		for _, restarted := range []bool{false, true} {
			if restarted {
				b.Restart(t)
			}
			says(t, b.waitState(t, "kata-clh", "not-ready").Reason, written, "/dev/kvm does not exist")
			if listed, ready := b.advertised(t, "kata-clh"); listed || ready {
				t.Errorf("in Status the handler is listed: %v, all handlers are ready: %v, want neither", listed, ready)
			}
			says(t, b.refusal(t, "kata-clh", codes.Unavailable), "kata-clh", "/dev/kvm does not exist")
			says(t, b.degraded(t), "handler kata-clh is not ready: ", "/dev/kvm does not exist")
			works(t, b, pod)
			b.pod(t, "").Remove(t)
		}
		b.remove(t, b.DropInPath("70-import"))
		b.waitState(t, "kata-clh", "")
	}
}

// privateMounts gives the test's thread, and processes that it starts, a mount namespace.
func privateMounts(t *testing.T) {
	t.Helper()
	// Never unlocked: the thread and its mount namespace end with the test.
	runtime.LockOSThread()
	for _, err := range []error{unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")} {
		testbed.Mustf(t, err, "enter a new mount namespace")
	}
}

// hide gives this test, and the daemon that it starts, a /dev without a device, if the machine has
// the device.
func hide(t *testing.T, device string) {
	t.Helper()
	testbed.NeedRoot(t)
	if _, err := os.Lstat(device); errors.Is(err, os.ErrNotExist) {
		return
	}
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		testbed.Mustf(t, err, "make a /dev without %s", device)
	}
	privateMounts(t)
	must(unix.Mount("dev", dir, "tmpfs", 0, "mode=755"))
	entries, err := os.ReadDir("/dev")
	must(err)
	for _, e := range entries {
		from, to := filepath.Join("/dev", e.Name()), filepath.Join(dir, e.Name())
		switch {
		case from == device:
			continue
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(from)
			must(err)
			must(os.Symlink(target, to))
			continue
		case e.IsDir():
			must(os.Mkdir(to, 0o755))
		default:
			must(os.WriteFile(to, nil, 0o600))
		}
		must(unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""))
	}
	must(unix.Mount(dir, "/dev", "", unix.MS_MOVE, ""))
}
