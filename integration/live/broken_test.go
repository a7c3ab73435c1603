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

// refusal is the answer to a pod for a handler, which must be one.
func (b *bed) refusal(t *testing.T, handler string, code codes.Code) string {
	t.Helper()
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: handler})
	if status.Code(err) != code {
		t.Errorf("a pod of handler %s: %v, want %s", handler, err, code)
	}
	return status.Convert(err).Message()
}

// says fails unless a text has every word.
func says(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("lacks %q: %s", word, text)
		}
	}
}

// degraded is what `berth status` says, which must be that something is wrong.
func (b *bed) degraded(t *testing.T) string {
	t.Helper()
	out, code := b.try(t, "status")
	if code != 3 {
		t.Errorf("berth status ends with %d: %s", code, out)
	}
	return out
}

// try runs an operator's command and returns what it says and how it ends.
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

// A daemon that starts among handlers that cannot work serves the others, says what
// is wrong with each, and takes each up when it is mended, without a restart.
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
				t.Errorf("listed: %v, all ready: %v", listed, ready)
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

// An unknown handler is told with those that there are, the one that was probably
// meant, and what to do.
func TestPainUnknownHandlerErrorsHelpNobody(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "gvisor", table("gvisor", testbed.Part(t, testbed.Runsc)))
	b.waitState(t, "gvisor", "ready")
	text := b.refusal(t, "gvisr", codes.InvalidArgument)
	says(t, text, `unknown runtime handler "gvisr"`, `did you mean "gvisor"?`, "gvisor, runc (default)",
		"RuntimeClass", "[runtimes.gvisr]", `"berth check"`)
	// Nothing is printed that is an address of the daemon's memory.
	if strings.Contains(text, "0xc0") || len(text) > 1024 {
		t.Errorf("the text is %s", text)
	}
	// A handler whose file has a mistake is not unknown: the file and the key are told.
	b.Stop(t)
	b.DropIn(t, "typo", "[runtimes.typo]\nruntime_pth = \"/usr/bin/runc\"\n")
	b.Start(t)
	says(t, b.refusal(t, "typo", codes.Unavailable), b.DropInPath("typo")+":2:1", "runtime_pth", `did you mean "runtime_path"?`)
}

// A key with a typo is a mistake wherever it is, told with its place and the key
// that was probably meant, by everything that reads or shows the configuration.
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
				t.Errorf("berth reload --wait ends with %d", code)
			}
			says(t, out, want...)
			says(t, b.degraded(t), want...)
			out, code = b.try(t, "check", "-c", b.DropInPath("90-typo"))
			if code != 2 {
				t.Errorf("berth check ends with %d", code)
			}
			says(t, out, want...)
			works(t, b, pod)
			b.remove(t, b.DropInPath("90-typo"))
			if out, code := b.try(t, "reload", "--wait"); code != 0 {
				t.Errorf("mended, berth reload --wait ends with %d: %s", code, out)
			}
		})
	}
}

// A drop-in that cannot be read does not keep a daemon from starting, and costs the
// handlers that are in it.
func TestPainABadDropInKeepsTheDaemonFromStarting(t *testing.T) {
	b := newBed(t)
	pod := b.pod(t, "runc")
	b.Stop(t)
	b.DropIn(t, "20-half", "[runtimes.half]\nruntime_path = \"/usr/bin/ru")
	b.DropIn(t, "30-whole", table("whole", testbed.Part(t, testbed.Crun)))
	b.Start(t)
	works(t, b, pod)
	works(t, b, b.pod(t, "whole"))
	says(t, b.degraded(t), b.DropInPath("20-half")+":2:")
	if listed, _ := b.advertised(t, "half"); listed {
		t.Error("a handler that cannot be read is advertised")
	}
	b.DropIn(t, "20-half", table("half", testbed.Part(t, testbed.Runc)))
	b.waitState(t, "half", "ready")
	if out, code := b.try(t, "status"); code != 0 {
		t.Errorf("mended, berth status ends with %d: %s", code, out)
	}
}

// Kata as its installer leaves it on a machine without KVM is not ready, and says so
// in the file's words; what shares the kernel goes on.
func TestPainKataWithoutKVMIsAdvertised(t *testing.T) {
	hide(t, "/dev/kvm")
	b := newBed(t)
	pod := b.pod(t, "runc")
	kata := filepath.Join(b.Dir, "kata")
	shim := filepath.Join(kata, "bin", "containerd-shim-kata-v2")
	for _, path := range []string{shim, filepath.Join(kata, "share", "defaults", "kata-containers", "x")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// A program that answers as a shim does: all that is missing is the device.
	copyFile(t, testbed.Part(t, testbed.RuncShim), shim)
	for _, name := range []string{"clh", "qemu-tdx", "qemu-snp"} {
		path := filepath.Join(kata, "share", "defaults", "kata-containers", "configuration-"+name+".toml")
		if err := os.WriteFile(path, []byte("[hypervisor]\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// No tests of their own: this thread alone, and what it starts, sees no device.
	for name, file := range map[string]string{"crio": "kata-crio/99-kata-deploy", "containerd": "kata-containerd/kata-deploy.toml"} {
		text, err := os.ReadFile("../../pkg/config/testdata/import/" + file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		written := filepath.Join(dir, filepath.Base(file))
		b.DropIn(t, "70-import", fmt.Sprintf("[import]\n%s = [%q]\n", name, dir))
		// The installer's own words, but for where it has put Kata.
		if err := os.WriteFile(written, bytes.ReplaceAll(text, []byte("/opt/kata"), []byte(kata)), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, restarted := range []bool{false, true} {
			if restarted {
				b.Restart(t)
			}
			says(t, b.waitState(t, "kata-clh", "not-ready").Reason, written, "/dev/kvm does not exist")
			if listed, ready := b.advertised(t, "kata-clh"); listed || ready {
				t.Errorf("listed: %v, all ready: %v", listed, ready)
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

// hide has this test, and the daemon that it starts, see a /dev without a device, on
// a machine that has it.
func hide(t *testing.T, device string) {
	t.Helper()
	testbed.NeedRoot(t)
	if _, err := os.Lstat(device); errors.Is(err, os.ErrNotExist) {
		return
	}
	// Never unlocked: the thread ends with the test, and its mounts with it.
	runtime.LockOSThread()
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("make a /dev without %s: %v", device, err)
		}
	}
	must(unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS))
	must(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
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
