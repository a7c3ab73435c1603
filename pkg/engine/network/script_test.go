package network

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

func runShell(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.Command("sh", "-c", command).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
}

// checkError checks class, content and size of an error.
func checkError(t *testing.T, err error, is func(error) bool, says ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	if !is(err) {
		t.Errorf("%v: wrong class", err)
	}
	test.Says(t, err, says...)
	if n := len(err.Error()); n >= 1024 {
		t.Errorf("the error has %d bytes", n)
	}
}

const spyList = `{"cniVersion": "1.0.0", "name": "spied", "plugins": [
	{"type": "first", "capabilities": {"portMappings": true, "dns": true, "cgroupPath": true}},
	{"type": "second", "capabilities": {"bandwidth": true, "io.kubernetes.cri.pod-annotations": true, "ips": true}}]}`

func newSpyNode(t testing.TB) *node {
	n := newNode(t)
	n.configure("10-spied.conflist", spyList)
	n.spy("first", "")
	n.spy("second", "")
	return n
}

func fullPod(n *node) Pod {
	pod := n.pod("pod-full")
	pod.Annotations = map[string]string{"a": "b"}
	pod.PortMappings = []PortMapping{{HostPort: 8080, ContainerPort: 80, Protocol: "udp", HostIP: "127.0.0.1"}}
	pod.Bandwidth = &Bandwidth{IngressRate: 1000, IngressBurst: 2000}
	pod.DNS = &DNS{Servers: []string{"10.0.0.10"}, Searches: []string{"svc"}, Options: []string{"ndots:5"}}
	pod.CgroupPath = "/kubepods/pod1"
	return pod
}

func TestWhatPluginsAreTold(t *testing.T) {
	n := newSpyNode(t)
	pod := fullPod(n)
	p := New(n.config)
	r := mustSetup(t, p, pod)
	if want := []string{"10.98.0.7", "fd98::7"}; !reflect.DeepEqual(r.IPs, want) {
		t.Errorf("addresses %v, want %v", r.IPs, want)
	}
	mustTeardown(t, p, pod, r)

	want := map[string]map[string]any{
		"first": {
			"portMappings": []any{map[string]any{"hostPort": 8080.0, "containerPort": 80.0, "protocol": "udp", "hostIP": "127.0.0.1"}},
			"dns":          map[string]any{"servers": []any{"10.0.0.10"}, "searches": []any{"svc"}, "options": []any{"ndots:5"}},
			"cgroupPath":   "/kubepods/pod1",
		},
		"second": {
			"bandwidth":                         map[string]any{"ingressRate": 1000.0, "ingressBurst": 2000.0},
			"io.kubernetes.cri.pod-annotations": map[string]any{"a": "b"},
		},
	}
	for plugin, capabilities := range want {
		if got := n.commands(plugin); got != "ADD DEL" {
			t.Errorf("%s was called with %s, want ADD and DEL alone", plugin, got)
		}
		for _, call := range n.called(plugin) {
			if !reflect.DeepEqual(call.stdin["runtimeConfig"], any(capabilities)) {
				t.Errorf("%s %s: runtimeConfig %v, want %v", plugin, call.environ["CNI_COMMAND"], call.stdin["runtimeConfig"], capabilities)
			}
			for key, value := range map[string]string{
				"CNI_CONTAINERID": "pod-full",
				"CNI_IFNAME":      "eth0",
				"CNI_NETNS":       pod.NetNS,
				"CNI_ARGS":        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=pod-full;K8S_POD_UID=u-1",
			} {
				test.Equal(t, fmt.Sprintf("%s: %s", plugin, key), call.environ[key], value)
			}
		}
	}
	if first := n.called("first"); first[0].stdin["prevResult"] != nil || first[1].stdin["prevResult"] == nil {
		t.Error("the first plugin's ADD must have no previous result, and its DEL must have one")
	}
	test.Equal(t, "the result", test.File(t, n.calls("first")+".log"), "first ADD\nfirst DEL\n")
	n.checkClean()
}

// Teardown fails until the temporary namespace is released, because no later run would find it.
func TestTeardownRepeatsAFailedRelease(t *testing.T) {
	n := newNode(t)
	n.configure("10-masq.conflist", `{"cniVersion": "1.0.0", "name": "masq", "plugins": [{"type": "first", "ipMasq": true}]}`)
	n.spy("first", `[ "$CNI_COMMAND" = DEL ] && mount --bind "${CNI_NETNS%/*}" "${CNI_NETNS%/*}"`)
	pod, p := n.pod("pod-busy"), New(n.config)
	r := mustSetup(t, p, pod)
	test.Must(t, mountpoint.Unmount(pod.NetNS))
	dir := filepath.Join(n.config.CacheDir, "substitutes", pod.ID)
	err := p.Teardown(t.Context(), pod, r)
	test.Must(t, mountpoint.Unmount(dir))
	test.Says(t, err, "tear down the network of pod shop/web: ", "release namespaces: ")
	n.spy("first", "")
	mustTeardown(t, p, pod, r)
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}
	n.checkClean()
}

// Plugins get no runtimeConfig if the pod requests none of their capabilities.
func TestNoRuntimeConfigWithoutCause(t *testing.T) {
	n := newSpyNode(t)
	mustSetup(t, New(n.config), n.pod("pod-plain"))
	for _, plugin := range []string{"first", "second"} {
		if got, ok := n.called(plugin)[0].stdin["runtimeConfig"]; ok {
			t.Errorf("%s got runtimeConfig %v", plugin, got)
		}
	}
}

// DEL gets the result of ADD from the sandbox's record if libcni's cache is gone.
func TestTeardownKeepsPrevResultWithoutCache(t *testing.T) {
	n := newSpyNode(t)
	pod := n.pod("pod-cache")
	r := mustSetup(t, New(n.config), pod)
	test.Must(t, os.RemoveAll(n.config.CacheDir))
	mustTeardown(t, New(n.config), pod, r)
	previous, ok := n.called("second")[1].stdin["prevResult"].(map[string]any)
	if !ok || previous["ips"] == nil {
		t.Errorf("DEL has the previous result %v", previous)
	}
}

func TestNamespaceThatIsGoneIsNotNamed(t *testing.T) {
	n := newSpyNode(t)
	pod := n.pod("pod-gone")
	p := New(n.config)
	r := mustSetup(t, p, pod)
	pod.NetNS = ""
	r.Attachments[0].NetNS = filepath.Join(t.TempDir(), "net")
	mustTeardown(t, p, pod, r)
	if got := n.called("first")[1].environ["CNI_NETNS"]; got != "" {
		t.Errorf("CNI_NETNS=%q, want none", got)
	}
}

func TestPluginFailures(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	tests := map[string]struct {
		script string
		is     func(error) bool
		says   []string
	}{
		"exit without output":    {"exit 3", errdefs.IsInternal, []string{"exit status 3", "no reason given", "first"}},
		"stderr alone":           {"echo broken pipe dream >&2; exit 1", errdefs.IsInternal, []string{"broken pipe dream"}},
		"not JSON":               {"echo Segmentation fault; exit 2", errdefs.IsInternal, []string{"Segmentation fault", "not a CNI result"}},
		"CNI error":              {`echo '{"code": 100, "msg": "no vlan", "details": "on ens3"}'; exit 1`, errdefs.IsInternal, []string{"no vlan", "on ens3", "100"}},
		"try again later":        {`echo '{"code": 11, "msg": "agent restarts"}'; exit 1`, errdefs.IsUnavailable, []string{"agent restarts"}},
		"endless text":           {"echo " + long + " >&2; exit 1", errdefs.IsInternal, []string{"ä", "…"}},
		"endless CNI error":      {`echo '{"code": 100, "msg": "` + long + `", "details": "` + long + `"}'; exit 1`, errdefs.IsInternal, []string{"ä", "…"}},
		"killed":                 {"kill -9 $$", errdefs.IsInternal, []string{"killed"}},
		"not a result":           {"echo hello; exit 0", errdefs.IsInternal, []string{"invalid character"}},
		"result without address": {`echo '{"cniVersion": "1.0.0"}'; exit 0`, errdefs.IsInternal, []string{"no address on eth0", "ipam"}},
		"result of another interface": {`echo '{"cniVersion": "1.0.0", "interfaces": [{"name": "br0"}], "ips": [{"address": "10.0.0.1/8", "interface": 0}]}'; exit 0`,
			errdefs.IsInternal, []string{"no address on eth0"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.configure("10-one.conflist", `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "first"}]}`)
			n.spy("first", `[ "$CNI_COMMAND" = ADD ] && { `+tc.script+"; }")
			_, err := New(n.config).Setup(t.Context(), n.pod("pod-x"))
			checkError(t, err, tc.is, tc.says...)
			if plugin, failed := errors.AsType[*runError](err); failed && plugin.Plugin != filepath.Join(n.config.BinDirs[0], "first") {
				t.Errorf("the failed plugin is %#v", plugin)
			}
			if got := n.commands("first"); got != "ADD DEL" {
				t.Errorf("called with %s, want DEL after the failed ADD", got)
			}
			n.checkClean()
		})
	}
}

// A plugin that writes too much is killed, and its output is dropped.
func TestPluginOutputIsBounded(t *testing.T) {
	n := newNode(t)
	for name, script := range map[string]string{
		"exits":  "head -c 3000000 /dev/zero",
		"stays":  "head -c 3000000 /dev/zero; sleep 300",
		"errors": "head -c 3000000 /dev/zero; exit 1",
	} {
		t.Run(name, func(t *testing.T) {
			n.script("floods", script)
			path := filepath.Join(n.config.BinDirs[0], "floods")
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			stdout, err := run(ctx, path, nil, nil)
			if len(stdout) > 0 {
				t.Errorf("%d bytes of stdout were kept", len(stdout))
			}
			checkError(t, err, errdefs.IsInternal, path, "more than 1048576 bytes to stdout", "killed")
		})
	}
	n.script("floods", "head -c 3000000 /dev/zero >&2; echo the end >&2; exit 1")
	_, err := run(t.Context(), filepath.Join(n.config.BinDirs[0], "floods"), nil, nil)
	var failed *runError
	if !errors.As(err, &failed) || len(failed.Stderr) > 1<<10 || !strings.HasSuffix(failed.Stderr, "the end\n") {
		t.Errorf("got %v, want the end of stderr", err)
	}
}

// A child that keeps the plugin's pipes open must not block the call.
func TestHangingPluginIsKilledWithItsChildren(t *testing.T) {
	n := newNode(t)
	n.configure("10-one.conflist", `{"cniVersion": "1.0.0", "name": "one", "plugins": [{"type": "first"}]}`)
	pidFile := filepath.Join(t.TempDir(), "pid")
	n.spy("first", `sleep 300 & echo $! > `+pidFile+`; wait`)
	p := New(n.config)
	p.undoTimeout = 200 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	started := time.Now()
	checkError(t, test.Err(p.Setup(ctx, n.pod("pod-hangs"))), errdefs.IsDeadlineExceeded, "first", "killed before it finished")
	if took := time.Since(started); took > 20*time.Second {
		t.Errorf("Setup took %v", took)
	}
	pid := test.Value(os.ReadFile(pidFile))(t)
	runs := func() bool {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/status")
		return err == nil && !strings.Contains(string(status), "State:\tZ")
	}
	// The child was killed, but may need some time to exit.
	test.Eventually(t, "the plugin's child has exited", func() bool { return !runs() })
	// DEL hung as well, so the pod is still in the journal for the next collection.
	n.spy("first", "")
	test.Must(t, collect(t, New(n.config)))
	n.checkClean()
}

// The kernel kills a plugin when the thread that started it ends. A thread ends after
// it has entered a namespace, so plugins must not be started on such a thread.
func TestPluginOutlivesThreads(t *testing.T) {
	n := newNode(t)
	n.script("slow", "sleep 0.1")
	pod := n.pod("pod-slow")
	var ending, plugins sync.WaitGroup
	done := make(chan struct{})
	for range 8 {
		ending.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := namespaces.Do(pod.NetNS, func() error { return nil }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 8 {
		plugins.Go(func() {
			for range 8 {
				test.Check(t, test.Err(run(t.Context(), filepath.Join(n.config.BinDirs[0], "slow"), nil, nil)))
			}
		})
	}
	plugins.Wait()
	close(done)
	ending.Wait()
}

// A plugin that exits with success has succeeded, even if a child keeps its stdout open.
func TestPluginMayLeaveADaemon(t *testing.T) {
	n := newSpyNode(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	n.spy("second", `[ "$CNI_COMMAND" = ADD ] && { sleep 30 & echo $! > `+pidFile+`; }`)
	mustSetup(t, New(n.config), n.pod("pod-daemon"))
	runShell(t, "kill $(cat "+pidFile+")")
}

func TestTeardownReportsOnlyWhatWasConnected(t *testing.T) {
	n := newSpyNode(t)
	p := New(n.config)
	pod := n.pod("pod-del")
	r := mustSetup(t, p, pod)
	n.spy("second", `[ "$CNI_COMMAND" = DEL ] && { echo '{"code": 100, "msg": "table is locked"}'; exit 1; }`)
	checkError(t, p.Teardown(t.Context(), pod, r), errdefs.IsInternal, "second", "table is locked", "shop/web")
	checkError(t, New(n.config).Teardown(t.Context(), pod, nil), errdefs.IsInternal, "table is locked")

	// Teardown of a pod without a completed ADD is not an error.
	never := n.pod("pod-never")
	mustTeardown(t, p, never, nil)

	n.spy("second", "")
	mustTeardown(t, p, pod, r)
	n.checkClean()
}

func TestTeardownWithoutConfigurationAndResult(t *testing.T) {
	n := newNode(t)
	mustTeardown(t, New(n.config), n.pod("pod-none"), nil)
}

func TestSeveralNetworks(t *testing.T) {
	n := newSpyNode(t)
	n.configure("20-more.conflist", `{"cniVersion": "1.0.0", "name": "more", "plugins": [{"type": "third"}]}`)
	n.configure("30-unused.conflist", `{"cniVersion": "1.0.0", "name": "unused", "plugins": [{"type": "fourth"}]}`)
	n.spy("third", "")
	n.config.MaxConfNum = 2
	p := New(n.config)
	pod := n.pod("pod-two")
	r := mustSetup(t, p, pod)
	if len(r.Attachments) != 2 || len(r.IPs) != 2 {
		t.Errorf("attachments %+v, addresses %v", r.Attachments, r.IPs)
	}
	if got := n.called("third")[0].environ["CNI_IFNAME"]; got != "eth1" {
		t.Errorf("the second network is on %s, want eth1", got)
	}
	// A DEL that fails does not prevent the DEL of the other network.
	n.spy("third", `[ "$CNI_COMMAND" = DEL ] && exit 1`)
	test.Fails(t, p.Teardown(t.Context(), pod, r), "Teardown succeeded although a DEL failed")
	test.Equal(t, "the commands of the first network", n.commands("first"), "ADD DEL")
	n.spy("third", "")
	mustTeardown(t, p, pod, r)
	n.checkClean()
}

// Plugin configurations in files of their own are recorded with the pod too.
func TestPluginsInFilesOfTheirOwn(t *testing.T) {
	n := newNode(t)
	n.configure("10-split.conflist", `{"cniVersion": "1.0.0", "name": "split"}`)
	dir := filepath.Join(n.config.ConfDir, "split")
	test.Must(t, os.Mkdir(dir, 0o755))
	test.Must(t, os.WriteFile(filepath.Join(dir, "10-first.conf"), []byte(`{"type": "first", "mark": 7}`), 0o644))
	n.spy("first", "")
	pod := n.pod("pod-split")
	r := mustSetup(t, New(n.config), pod)
	test.Must(t, os.RemoveAll(dir))
	mustTeardown(t, New(n.config), pod, r)
	if calls := n.called("first"); len(calls) != 2 || calls[1].stdin["mark"] != 7.0 {
		t.Errorf("the calls are %v, want a DEL with the mark", calls)
	}
}

func TestHandlersOwnDirectory(t *testing.T) {
	n := newSpyNode(t)
	own := filepath.Join(t.TempDir(), "own")
	test.Must(t, os.Mkdir(own, 0o755))
	test.Must(t, os.WriteFile(filepath.Join(own, "x.conf"), []byte(`{"cniVersion": "1.0.0", "name": "own", "type": "third"}`), 0o644))
	n.spy("third", "")
	pod := n.pod("pod-own")
	pod.CNIConfDir = own
	p := New(n.config)
	r := mustSetup(t, p, pod)
	pod.CNIConfDir = "" // the handler may have changed meanwhile
	mustTeardown(t, p, pod, r)
	if n.commands("third") != "ADD DEL" || n.commands("first") != "" {
		t.Errorf("commands of third: %q, of first: %q", n.commands("third"), n.commands("first"))
	}
	pod.CNIConfDir = filepath.Join(own, "missing")
	checkError(t, test.Err(p.Setup(t.Context(), pod)), errdefs.IsUnavailable, pod.CNIConfDir)
	test.Checkf(t, p.Status(), "the status of the node's own network")
}

// The configuration of ADD is on disk before the first plugin runs.
func TestKilledDuringSetup(t *testing.T) {
	n := newSpyNode(t)
	saved := filepath.Join(t.TempDir(), "journal")
	n.spy("first", `[ "$CNI_COMMAND" = ADD ] && cp -r `+filepath.Join(n.config.CacheDir, "journal")+" "+saved)
	n.spy("second", `[ "$CNI_COMMAND" = ADD ] && exit 1`)
	pod := n.pod("pod-killed")
	if _, err := New(n.config).Setup(t.Context(), pod); err == nil {
		t.Fatal("Setup succeeded although a plugin failed")
	}
	// Restore the journal that a daemon leaves if it is killed during Setup,
	// and change the configuration.
	runShell(t, "rm -r "+filepath.Join(n.config.CacheDir, "journal")+" && mv "+saved+" "+filepath.Join(n.config.CacheDir, "journal"))
	n.unconfigure("10-spied.conflist")
	before := len(n.called("first"))
	mustTeardown(t, New(n.config), pod, nil)
	if calls := n.called("first")[before:]; len(calls) != 1 || calls[0].environ["CNI_COMMAND"] != "DEL" {
		t.Errorf("calls %v, want DEL by the old configuration", calls)
	}
	n.checkClean()
}
