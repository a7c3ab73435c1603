package network

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// realBinDir has the CNI plugins of Debian.
const realBinDir = "/usr/lib/cni"

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		println("these tests make namespaces and networks: run them as root")
		os.Exit(1)
	}
	if _, err := os.Stat(filepath.Join(realBinDir, "portmap")); err != nil {
		println("these tests need the CNI plugins: apt-get install containernetworking-plugins iptables")
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// node simulates a node with its own configuration, plugins, bridge and addresses.
type node struct {
	t      testing.TB
	config Config
	bridge string
	ipam   string // host-local's directory
}

// newNode makes a node without any configuration; its plugins are scripts.
func newNode(t testing.TB) *node {
	dir := t.TempDir()
	n := &node{t: t, ipam: filepath.Join(dir, "ipam"), config: Config{
		ConfDir:  filepath.Join(dir, "net.d"),
		BinDirs:  []string{filepath.Join(dir, "bin")},
		CacheDir: filepath.Join(dir, "cache"),
		GC:       true, // no other daemon uses these networks
	}}
	for _, d := range []string{n.config.ConfDir, n.config.BinDirs[0]} {
		test.Must(t, os.Mkdir(d, 0o755))
	}
	return n
}

// newRealNode makes a node with bridge, host-local and portmap.
func newRealNode(t testing.TB) *node {
	n := newNode(t)
	n.config.BinDirs = append(n.config.BinDirs, realBinDir)
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, t.Name(), os.Getpid())
	n.bridge = fmt.Sprintf("bt%x", hash.Sum32())
	n.configure("10-real.conflist", n.chain("real"))
	t.Cleanup(n.removeBridge)
	return n
}

// subnet returns a subnet of 10.99.0.0/16 that depends on the bridge's name.
func (n *node) subnet() string {
	hash := fnv.New32a()
	_, _ = fmt.Fprint(hash, n.bridge)
	return fmt.Sprintf("10.99.%d.0/24", hash.Sum32()%256)
}

func (n *node) chain(name string) string {
	return fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [
		{"type": "bridge", "bridge": %q, "isGateway": true, "ipMasq": true, "hairpinMode": true,
		 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}`, name, n.bridge, n.ipam, n.subnet())
}

// removeBridge removes the bridge, and the node's interfaces in its VLANs.
func (n *node) removeBridge() {
	n.t.Helper()
	for _, link := range test.Value(netlink.LinkList())(n.t) {
		if name, _, _ := strings.Cut(link.Attrs().Name, "."); name == n.bridge {
			test.Check(n.t, netlink.LinkDel(link))
		}
	}
}

func (n *node) configure(file, text string) {
	n.t.Helper()
	test.Must(n.t, os.WriteFile(filepath.Join(n.config.ConfDir, file), []byte(text), 0o644))
}

// script installs a plugin that is a shell script.
func (n *node) script(name, body string) {
	n.t.Helper()
	path := filepath.Join(n.config.BinDirs[0], name)
	test.Must(n.t, os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755))
}

// spy installs a plugin that records each call and then runs body. Unless body exits,
// the plugin then answers as a plugin should.
func (n *node) spy(name, body string) {
	n.script(name, fmt.Sprintf(`calls=%q; mkdir -p "$calls"
n=$(ls "$calls" | grep -c stdin)
cat > "$calls/$n.stdin"; env > "$calls/$n.env"; echo %s "$CNI_COMMAND" >> "$calls.log"
%s
[ "$CNI_COMMAND" = ADD ] && cat <<END
{"cniVersion": "1.0.0", "interfaces": [{"name": "$CNI_IFNAME", "sandbox": "$CNI_NETNS"}],
 "ips": [{"address": "10.98.0.7/24", "interface": 0}, {"address": "fd98::7/64", "interface": 0}]}
END
exit 0`, n.calls(name), name, body))
}

func (n *node) calls(name string) string {
	return filepath.Join(filepath.Dir(n.config.CacheDir), "calls-"+name)
}

// call is one run of a spy.
type call struct {
	environ map[string]string
	stdin   map[string]any
}

func (n *node) called(name string) []call {
	n.t.Helper()
	var out []call
	for i := 0; ; i++ {
		stdin, err := os.ReadFile(filepath.Join(n.calls(name), fmt.Sprintf("%d.stdin", i)))
		if err != nil {
			return out
		}
		environ, err := os.ReadFile(filepath.Join(n.calls(name), fmt.Sprintf("%d.env", i)))
		test.Must(n.t, err)
		c := call{environ: map[string]string{}}
		test.Must(n.t, json.Unmarshal(stdin, &c.stdin))
		for line := range strings.Lines(string(environ)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
			c.environ[key] = value
		}
		out = append(out, c)
	}
}

// commands are the CNI commands that a spy was called with.
func (n *node) commands(name string) string {
	var out []string
	for _, c := range n.called(name) {
		out = append(out, c.environ["CNI_COMMAND"])
	}
	return strings.Join(out, " ")
}

// pod makes a pod with a network namespace of its own.
func (n *node) pod(id string) Pod {
	n.t.Helper()
	dir := filepath.Join(n.t.TempDir(), "ns")
	ns, err := namespaces.Create(n.t.Context(), namespaces.Request{Dir: dir, Net: true})
	test.Must(n.t, err)
	n.t.Cleanup(func() {
		test.Check(n.t, namespaces.Release(dir))
	})
	return Pod{ID: id, Name: "web", Namespace: "shop", UID: "u-1", NetNS: ns.Net}
}

// checkClean fails the test if anything of the node's pods is left.
func (n *node) checkClean() {
	n.t.Helper()
	for _, pattern := range []string{
		filepath.Join(n.config.CacheDir, "journal", "*"),
		filepath.Join(n.config.CacheDir, "results", "*"),
		filepath.Join(n.ipam, "*", "10.*"),
	} {
		if left, _ := filepath.Glob(pattern); len(left) > 0 {
			n.t.Errorf("left behind: %v", left)
		}
	}
	if n.bridge == "" {
		return
	}
	test.Retry(n.t, n.portsLeft)
	prefix := strings.TrimSuffix(n.subnet(), "0/24")
	for line := range strings.Lines(iptables(n.t)) {
		if strings.Contains(line, prefix) {
			n.t.Errorf("iptables rule left: %s", line)
		}
	}
}

// ports returns the interfaces on the bridge.
func (n *node) ports() (all []*netlink.LinkAttrs) {
	bridge, err := netlink.LinkByName(n.bridge)
	if err != nil {
		return nil
	}
	for _, link := range test.Value(netlink.LinkList())(n.t) {
		if link.Attrs().MasterIndex == bridge.Attrs().Index {
			all = append(all, link.Attrs())
		}
	}
	return all
}

// portsLeft returns an error while the bridge has interfaces of pods.
func (n *node) portsLeft() error {
	for _, port := range n.ports() {
		peer, err := netlink.LinkByIndex(port.ParentIndex)
		ofNode := err == nil && port.NetNsID < 0 && strings.HasPrefix(peer.Attrs().Name, n.bridge+".")
		if !ofNode {
			return fmt.Errorf("interface on the bridge: %s", port.Name)
		}
	}
	return nil
}

func iptables(t testing.TB) string {
	t.Helper()
	out := test.Value(exec.Command("iptables", "-t", "nat", "-S").Output())(t)
	return string(out)
}

func mustSetup(t testing.TB, p *Plugins, pod Pod) *Result {
	t.Helper()
	return test.Value(p.Setup(t.Context(), pod))(t)
}

func mustTeardown(t testing.TB, p *Plugins, pod Pod, r *Result) {
	t.Helper()
	test.Must(t, p.Teardown(t.Context(), pod, r))
}

// reach connects from the pod to an address of the host, and reads what the host sends.
func reach(t *testing.T, pod Pod, host net.IP) {
	t.Helper()
	server := test.Value(net.Listen("tcp", net.JoinHostPort(host.String(), "0")))(t)
	defer server.Close()
	go func() {
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = fmt.Fprint(conn, "hello") // the reader reports a failure
	}()
	test.Checkf(t, namespaces.Do(pod.NetNS, func() error {
		conn, err := net.DialTimeout("tcp", server.Addr().String(), time.Minute)
		if err != nil {
			return err
		}
		defer conn.Close()
		b := make([]byte, 5)
		if _, err := conn.Read(b); err != nil || !bytes.Equal(b, []byte("hello")) {
			return fmt.Errorf("read %q: %w", b, err)
		}
		return nil
	}), "the pod does not reach the host")
}
