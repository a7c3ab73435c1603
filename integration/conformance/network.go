package conformance

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/patience"
	"github.com/berth-cri/berth/integration/testbed"
)

var networkChecks = []check{
	{name: "the pod has the address that status says", run: podAddress},
	{name: "containers of a pod share its network", run: sharedNetwork},
	{name: "two pods reach each other", run: podToPod},
	{name: "loopback is up", run: loopbackUp},
	{name: "host network", needs: []Ability{HostNetwork}, run: hostNetworkPod},
	{name: "hostname", run: podHostname},
	{name: "hosts file", run: hostsFile},
	{name: "DNS config", run: dnsConfig},
	{name: "no DNS config is the host's", run: dnsDefault},
	{name: "host port", needs: []Ability{PortMapping}, run: hostPort},
	{name: "host port zero is none", run: hostPortZero},
	{name: "a pod's own sysctls", needs: []Ability{Sysctls}, run: podSysctls},
	{name: "the address is free after stop", run: addressFreed},
}

func podAddress(t *testing.T, n *node) {
	p := n.pod(t)
	want := p.status(t).GetNetwork().GetIp()
	if net.ParseIP(want) == nil {
		t.Fatalf("ip is %q", want)
	}
	c := p.start(t, forever())
	testbed.Contains(t, c.exec(t, "ip", "addr", "show", "eth0"), want+"/", "status says %s, the pod", want)
}

func sharedNetwork(t *testing.T, n *node) {
	p := n.pod(t)
	p.start(t, sh("echo from-the-first > /tmp/index.html; exec httpd -f -p 127.0.0.1:8080 -h /tmp"))
	c := p.start(t, forever())
	n.eventually(t, "the second container reaches the first on loopback", func() bool {
		r, err := c.execSync(t, 5*time.Second, "wget", "-q", "-O", "-", "http://127.0.0.1:8080/index.html")
		return err == nil && strings.Contains(string(r.GetStdout()), "from-the-first")
	})
}

func podToPod(t *testing.T, n *node) {
	server := n.pod(t)
	server.start(t, sh("echo across > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"))
	url := "http://" + net.JoinHostPort(server.status(t).GetNetwork().GetIp(), "8080") + "/index.html"
	client := n.pod(t).start(t, forever())
	n.eventually(t, "one pod reaches the other at "+url, func() bool {
		r, err := client.execSync(t, 5*time.Second, "wget", "-q", "-O", "-", url)
		return err == nil && strings.Contains(string(r.GetStdout()), "across")
	})
}

func loopbackUp(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	testbed.Contains(t, c.exec(t, "ip", "addr", "show", "lo"), "127.0.0.1/8", "lo has no address")
}

func hostNetworkPod(t *testing.T, n *node) {
	p := n.pod(t, hostNetwork)
	st := p.status(t)
	testbed.Same(t, st.GetNetwork().GetIp(), "", "a host network pod has ip")
	testbed.Same(t, st.GetLinux().GetNamespaces().GetOptions().GetNetwork(), runtimeapi.NamespaceMode_NODE, "in status: the kubelet would replace the sandbox for ever: network mode is")
	c := p.start(t, forever())
	host, err := os.Readlink("/proc/self/ns/net")
	must(t, err, "own network namespace")
	testbed.Same(t, c.line(t, "readlink", "/proc/self/ns/net"), host, "network namespace is")
	name, err := os.Hostname()
	must(t, err, "hostname")
	testbed.Same(t, c.line(t, "hostname"), name, "hostname is")
}

func podHostname(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) { c.Hostname = "ship-7.example.test" })
	c := p.start(t, forever())
	testbed.Same(t, c.line(t, "hostname"), p.Config.GetHostname(), "hostname is")
	testbed.Same(t, c.line(t, "cat", "/etc/hostname"), p.Config.GetHostname(), "/etc/hostname is")
	testbed.Same(t, c.line(t, "sh", "-c", "echo $HOSTNAME"), p.Config.GetHostname(), "$HOSTNAME is")
}

func hostsFile(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	testbed.Contains(t, c.exec(t, "cat", "/etc/hosts"), "localhost", "/etc/hosts without a mount of the kubelet's lacks localhost")
	// A mount from the kubelet replaces the runtime's own file.
	file := t.TempDir() + "/hosts"
	must(t, os.WriteFile(file, []byte("192.0.2.9 from-the-kubelet\n"), 0o644), "hosts file")
	c = n.pod(t).start(t, forever(), mount(&runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: file}))
	testbed.Same(t, c.exec(t, "cat", "/etc/hosts"), "192.0.2.9 from-the-kubelet\n", "/etc/hosts is")
}

func dnsConfig(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.DnsConfig = &runtimeapi.DNSConfig{
			Servers:  []string{"192.0.2.53", "192.0.2.54"},
			Searches: []string{"svc.cluster.test", "cluster.test"},
			Options:  []string{"ndots:5", "timeout:1"},
		}
	})
	c := p.start(t, forever())
	got := map[string]bool{}
	for _, l := range strings.Split(c.exec(t, "cat", "/etc/resolv.conf"), "\n") {
		got[strings.TrimSpace(l)] = true
	}
	for _, want := range []string{
		"nameserver 192.0.2.53", "nameserver 192.0.2.54",
		"search svc.cluster.test cluster.test", "options ndots:5 timeout:1",
	} {
		if !got[want] {
			t.Errorf("/etc/resolv.conf lacks %q: %v", want, got)
		}
	}
}

func dnsDefault(t *testing.T, n *node) {
	host, err := os.ReadFile("/etc/resolv.conf")
	must(t, err, "the host's resolv.conf")
	c := n.pod(t).start(t, forever())
	if got := c.exec(t, "cat", "/etc/resolv.conf"); got != string(host) {
		t.Errorf("/etc/resolv.conf is\n%s\nthe host's is\n%s", got, host)
	}
}

func hostPort(t *testing.T, n *node) {
	port := freePort(t)
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 8080, HostPort: int32(port)}}
	})
	p.start(t, sh("echo mapped > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"))
	addr := net.JoinHostPort(hostAddress(t), fmt.Sprint(port))
	n.eventually(t, "the pod answers at "+addr, func() bool { return strings.Contains(httpGet(addr), "mapped") })
	p.stop(t)
	if got := httpGet(addr); strings.Contains(got, "mapped") {
		t.Error("the host port still answers after StopPodSandbox")
	}
}

// httpGet requests /index.html and returns the answer as far as it arrives.
func httpGet(addr string) string {
	conn, err := net.DialTimeout("tcp", addr, patience.Of(time.Second))
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience.Of(2 * time.Second)))
	if _, err := fmt.Fprint(conn, "GET /index.html HTTP/1.0\r\n\r\n"); err != nil {
		return ""
	}
	var all strings.Builder
	for s := bufio.NewScanner(conn); s.Scan(); {
		all.WriteString(s.Text() + "\n")
	}
	return all.String()
}

// freePort returns a free port below the range from which the kernel gives ports to connections of
// other checks.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 15_000 + rand.IntN(15_000)
		if l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port))); err == nil {
			must(t, l.Close(), "free port")
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// hostAddress returns an address of the host other than loopback: host ports on loopback need a
// sysctl that this suite does not set.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	must(t, err, "addresses")
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	t.Fatal("the host has no IPv4 address besides loopback, which host ports need")
	return ""
}

func hostPortZero(t *testing.T, n *node) {
	for range 2 { // the same mapping twice: a dynamic or a shared port would collide
		n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
			c.PortMappings = []*runtimeapi.PortMapping{{ContainerPort: 80}, {ContainerPort: 80, Protocol: runtimeapi.Protocol_UDP}}
		})
	}
}

func podSysctls(t *testing.T, n *node) {
	p := n.pod(t, func(c *runtimeapi.PodSandboxConfig) {
		c.Linux.Sysctls = map[string]string{"net.ipv4.ip_local_port_range": "10000\t20000", "kernel.shm_rmid_forced": "1"}
	})
	c := p.start(t, forever())
	if got := strings.Fields(c.line(t, "cat", "/proc/sys/net/ipv4/ip_local_port_range")); len(got) != 2 || got[0] != "10000" || got[1] != "20000" {
		t.Errorf("ip_local_port_range is %v", got)
	}
	testbed.Same(t, c.line(t, "cat", "/proc/sys/kernel/shm_rmid_forced"), "1", "shm_rmid_forced is")
	if got, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range"); err != nil || strings.HasPrefix(string(got), "10000\t20000") {
		t.Errorf("the host's sysctl changed: %q, %v", got, err)
	}
}

// addressFreed creates pods one after another: none may get the address of a pod that still runs.
func addressFreed(t *testing.T, n *node) {
	inUse := map[string]bool{n.pod(t).status(t).GetNetwork().GetIp(): true}
	for range 4 {
		p := n.pod(t)
		ip := p.status(t).GetNetwork().GetIp()
		if inUse[ip] {
			t.Errorf("address %s was given to two pods", ip)
		}
		p.stop(t)
		if got := p.status(t); got.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY {
			t.Error("READY after stop")
		}
		p.remove(t)
	}
}
