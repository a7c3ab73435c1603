package live

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// A handler that is added by a drop-in runs a pod at once, without a restart of the daemon.
func TestPainAddingAHandlerMeansARestart(t *testing.T) {
	b := newBed(t)
	old, pid := b.pod(t, "runc"), b.PID()
	begin := time.Now()
	b.DropIn(t, "crun", table("crun", testbed.Part(t, testbed.Crun)))
	id := b.firstPod(t, "crun")
	took := time.Since(begin)
	t.Logf("the added handler ran its first pod after %v", took.Round(time.Millisecond))
	if took > patience {
		t.Errorf("the first pod ran only after %v", took)
	}
	if b.PID() != pid || !b.Running() {
		t.Error("the daemon was restarted")
	}
	if listed, ready := b.advertised(t, "crun"); !listed || !ready {
		t.Errorf("in Status the handler is listed: %v, all handlers are ready: %v, want both", listed, ready)
	}
	b.removeSandbox(t, id)
	works(t, b, b.pod(t, "crun"))
	works(t, b, old)

	// A drop-in in the vendor's directory counts too, until conf.d has one of the same name.
	vendor := filepath.Join(b.Dir, "vendor.d", "third.toml")
	testbed.Must(t, os.WriteFile(vendor, []byte(table("third", testbed.Part(t, testbed.Runc))), 0o600))
	if got := b.waitState(t, "third", "ready"); !strings.HasPrefix(got.Origin, vendor) {
		t.Errorf("the handler's origin is %s, want the vendor's drop-in", got.Origin)
	}
	b.DropIn(t, "third", table("mine", testbed.Part(t, testbed.Runc)))
	b.waitState(t, "mine", "ready")
	b.waitState(t, "third", "")
}

// firstPod tries to run a pod until the handler exists.
func (b *bed) firstPod(t *testing.T, handler string) string {
	t.Helper()
	config := b.Client.SandboxConfig("")
	var resp *runtimeapi.RunPodSandboxResponse
	testbed.Eventually(t, patience, func() (err error) {
		resp, err = b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
		if err != nil && status.Code(err) != codes.InvalidArgument {
			t.Fatal(err)
		}
		return err
	})
	return resp.GetPodSandboxId()
}

func (b *bed) removeSandbox(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := b.Client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Error(err)
	}
	if _, err := b.Client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
		t.Error(err)
	}
}

// After a reload, new pods use the changed runtime, pod network and snapshotter of a handler.
// Existing pods stay as they are.
func TestPainReloadLogsSuccessAndNeverReachesPods(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "edited", table("edited", testbed.Part(t, testbed.Runc)))
	b.waitState(t, "edited", "ready")
	old := b.pod(t, "edited")
	oldAddress := old.IP(t)

	network := testbed.NewCNI(t)
	before := b.waitState(t, "edited", "ready")
	b.DropIn(t, "edited", table("edited", testbed.Part(t, testbed.Crun))+
		fmt.Sprintf("cni_conf_dir = %q\nsnapshotter = \"native\"\n", network.ConfDir))
	testbed.Eventually(t, patience, func() error {
		if _, now := b.status(t); now.of("edited").Since == before.Since {
			return fmt.Errorf("the handler still has the definition of generation %d", before.Since)
		}
		return nil
	})
	fresh := b.pod(t, "edited")
	works(t, b, fresh)
	works(t, b, old)
	if runtime := b.runtimeOf(t, fresh); runtime != "crun" {
		t.Errorf("the new pod runs on %q, want crun", runtime)
	}
	if runtime := b.runtimeOf(t, old); runtime != "runc" {
		t.Errorf("the old pod runs on %q, want runc", runtime)
	}
	if prefix := oldAddress[:strings.LastIndex(oldAddress, ".")+1]; strings.HasPrefix(fresh.IP(t), prefix) {
		t.Errorf("the new pod has %s, from the network of the old one's %s", fresh.IP(t), oldAddress)
	}
	if mounts := fresh.Container.Exec(t, "cat", "/proc/mounts"); strings.HasPrefix(mounts, "overlay / ") {
		t.Error("the new pod's root filesystem is an overlay")
	}
}

// runtimeOf returns the runtime that has a state file for a pod's container.
func (b *bed) runtimeOf(t *testing.T, pod *testbed.Pod) string {
	t.Helper()
	for _, name := range []string{"runc", "crun"} {
		// runc keeps state.json, crun a file named status.
		file := map[string]string{"runc": "state.json", "crun": "status"}[name]
		found, err := filepath.Glob(filepath.Join(b.State, "runtimes", pod.Handler, pod.Container.ID, file))
		testbed.Must(t, err)
		if len(found) > 0 {
			return name
		}
	}
	return ""
}

// A mistake in any configuration file changes nothing. The log has its place, and the metrics show
// that the last reload failed.
func TestPainABadDropInTakesTheNodeDown(t *testing.T) {
	b := newBed(t)
	pod := b.pod(t, "")
	_, before := b.status(t)
	main, err := os.ReadFile(b.ConfigFile)
	testbed.Must(t, err)
	for name, spoil := range map[string]struct {
		path, text, says string
	}{
		"a typo in a drop-in":        {b.DropInPath("kata"), "[runtimes.kata]\nruntime_pth = \"/x\"\n", ":2:1: runtimes.kata.runtime_pth: unknown key"},
		"a truncated drop-in":        {b.DropInPath("kata"), "[runtimes.kata]\nruntime_path = \"/x", ":2:"},
		"a handler twice":            {b.DropInPath("runc"), table("runc", "/x"), "is already configured"},
		"a mistake in the main file": {b.ConfigFile, string(main) + "[server]\n", "[server]"},
	} {
		t.Run(name, func(t *testing.T) {
			failed := `berth_config_reloads_total{outcome="failed",trigger="files"}`
			was := b.metric(t, failed)
			testbed.Must(t, os.WriteFile(spoil.path, []byte(spoil.text), 0o600))
			testbed.Eventually(t, patience, func() error {
				if b.metric(t, failed) == was {
					return fmt.Errorf("the number of failed reloads is still %q", was)
				}
				return nil
			})
			if b.metric(t, "berth_config_last_reload_successful") != "0" {
				t.Error("berth_config_last_reload_successful is not 0")
			}
			if log := b.Log(); !strings.Contains(log, filepath.Base(spoil.path)) || name != "a mistake in the main file" && !strings.Contains(log, spoil.says) {
				t.Errorf("the log lacks %q", spoil.says)
			}
			if _, now := b.status(t); now.Generation != before.Generation || now.Digest != before.Digest {
				t.Errorf("generation %d is in use, want %d as before", now.Generation, before.Generation)
			}
			works(t, b, pod)
			b.pod(t, "runc").Remove(t)
			if spoil.path == b.ConfigFile {
				testbed.Must(t, os.WriteFile(spoil.path, main, 0o600))
			} else {
				b.remove(t, spoil.path)
			}
			testbed.Eventually(t, patience, func() error {
				if b.metric(t, "berth_config_last_reload_successful") != "1" {
					return fmt.Errorf("no reload has succeeded since the correction")
				}
				return nil
			})
		})
	}
}

// SIGHUP reloads the configuration. Many signals while pods start do no harm.
func TestPainSIGHUPEndsTheDaemon(t *testing.T) {
	b := newBed(t)
	var made atomic.Int64
	stop := make(chan struct{})
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				config := b.Client.SandboxConfig("")
				resp, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: config})
				if err != nil {
					t.Errorf("run a pod during the signals: %v", err)
					return
				}
				made.Add(1)
				b.removeSandbox(t, resp.GetPodSandboxId())
			}
		})
	}
	storm, pace := time.Now(), time.NewTicker(2*time.Millisecond)
	defer pace.Stop()
	signals := 0
	for ; made.Load() < 10 && time.Since(storm) < patience; signals++ {
		testbed.Must(t, unix.Kill(b.PID(), unix.SIGHUP))
		<-pace.C
	}
	close(stop)
	all.Wait()
	if !b.Running() || made.Load() < 10 {
		t.Fatalf("the daemon runs: %v; it ran %d pods, want 10 or more", b.Running(), made.Load())
	}
	if b.metric(t, `berth_config_reloads_total{outcome="unchanged",trigger="signal"}`) == "0" {
		t.Error("no signal caused a reload")
	}
	t.Logf("%d pods during %d signals", made.Load(), signals)
	b.DropIn(t, "crun", table("crun", testbed.Part(t, testbed.Crun)))
	testbed.Must(t, unix.Kill(b.PID(), unix.SIGHUP))
	b.waitState(t, "crun", "ready")
}

// The default handler can change while pods of the old default run. A handler that is removed
// drains, also across a restart, until its last pod is removed.
func TestPainChangingTheDefaultStrandsPods(t *testing.T) {
	b := newBed(t)
	b.DropIn(t, "crun", table("crun", testbed.Part(t, testbed.Crun)))
	b.waitState(t, "crun", "ready")
	byDefault, onCrun := b.pod(t, ""), b.pod(t, "crun")

	b.DropIn(t, "70-default", "default_runtime = \"crun\"\n")
	testbed.Eventually(t, patience, func() error {
		if _, now := b.status(t); now.Default != "crun" {
			return fmt.Errorf("the default is %s", now.Default)
		}
		return nil
	})
	newDefault := b.pod(t, "")
	if _, all := b.status(t); all.of("crun").Pods != 2 || all.of("runc").Pods != 1 {
		t.Errorf("the handlers are %+v, want 2 pods of crun and 1 of runc", all.Handlers)
	}
	for _, pod := range []*testbed.Pod{byDefault, onCrun, newDefault} {
		works(t, b, pod)
	}

	b.remove(t, b.DropInPath("70-default"))
	b.remove(t, b.DropInPath("crun"))
	b.waitState(t, "crun", "draining")
	_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: "crun"})
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "no longer configured") {
		t.Errorf("run a new pod of a removed handler: %v, want unavailable", err)
	}
	b.Kill9(t)
	b.Start(t)
	b.waitState(t, "crun", "draining")
	works(t, b, onCrun)
	works(t, b, newDefault)
	onCrun.Remove(t)
	newDefault.Remove(t)
	b.waitState(t, "crun", "")
	works(t, b, byDefault)
}

// A handler whose binary is lost soon becomes not ready and is no longer listed for the kubelet. It
// is ready again once the binary is back.
func TestPainANodeAdvertisesHandlersThatCannotWork(t *testing.T) {
	b := newBed(t)
	binary := filepath.Join(b.Dir, "runtime")
	copyFile(t, testbed.Part(t, testbed.Runc), binary)
	b.DropIn(t, "own", table("own", binary)+fmt.Sprintf("required_devices = [%q]\n", "/dev/null"))
	b.DropIn(t, "virtual", table("virtual", binary)+"required_devices = [\"/dev/no-such-device\"]\n")
	b.waitState(t, "own", "ready")
	if got := b.waitState(t, "virtual", "not-ready"); !strings.Contains(got.Reason, "/dev/no-such-device does not exist") {
		t.Errorf("the reason is %q, want the missing device", got.Reason)
	}
	if listed, ready := b.advertised(t, "virtual"); listed || ready {
		t.Errorf("in Status the handler is listed: %v, all handlers are ready: %v, want neither", listed, ready)
	}
	b.remove(t, b.DropInPath("virtual"))
	b.waitState(t, "virtual", "")

	for name, c := range map[string]struct {
		harm, mend func()
		says       string
	}{
		"the binary is missing": {
			func() { rename(t, binary, binary+".away") }, func() { rename(t, binary+".away", binary) }, "does not exist",
		},
		"the binary is not executable": {
			func() { chmod(t, binary, 0o644) }, func() { chmod(t, binary, 0o755) }, "not executable",
		},
		"the binary is not a runtime": {
			func() { rename(t, binary, binary+".away"); copyFile(t, "/bin/false", binary) },
			func() { rename(t, binary+".away", binary) }, "runtime_path",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.harm()
			begin := time.Now()
			if got := b.waitState(t, "own", "not-ready"); !strings.Contains(got.Reason, c.says) {
				t.Errorf("the reason is %q, want %q", got.Reason, c.says)
			}
			t.Logf("the handler was not ready after %v", time.Since(begin).Round(time.Millisecond))
			if listed, ready := b.advertised(t, "own"); listed || ready {
				t.Errorf("in Status the handler is listed: %v, all handlers are ready: %v, want neither", listed, ready)
			}
			if b.metric(t, `berth_handler_state{handler="own",state="not-ready"}`) != "1" {
				t.Error("berth_handler_state of not-ready is not 1")
			}
			_, err := b.Client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: b.Client.SandboxConfig(""), RuntimeHandler: "own"})
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), c.says) {
				t.Errorf("run a new pod: %v, want unavailable with %q", err, c.says)
			}
			b.pod(t, "runc").Remove(t)
			c.mend()
			b.waitState(t, "own", "ready")
			if listed, ready := b.advertised(t, "own"); !listed || !ready {
				t.Errorf("after the repair the handler is listed: %v, all handlers are ready: %v, want both", listed, ready)
			}
			b.pod(t, "own").Remove(t)
		})
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	testbed.Must(t, err)
	// Renamed into place: a file that is open for writing cannot be run.
	if err := os.WriteFile(to+".new", data, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	rename(t, to+".new", to)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	testbed.Must(t, os.Rename(from, to))
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	testbed.Must(t, os.Chmod(path, mode))
}

// command runs a command of berth, which must succeed.
func (b *bed) command(t *testing.T, arguments ...string) string {
	t.Helper()
	out, err := b.berth(t, arguments...)
	if err != nil {
		t.Fatalf("berth %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	return out
}

func (b *bed) berth(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(b.Bin, "berth"), arguments...)
	command.Env = append(os.Environ(), "BERTH_ADMIN_SOCKET="+filepath.Join(b.Dir, "admin.sock"))
	out, err := command.CombinedOutput()
	return string(out), err
}
