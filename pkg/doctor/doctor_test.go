package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// root is a healthy node that a test breaks.
type root struct {
	t *testing.T
	Node
}

const mounts = `22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:20 / /run rw,nosuid,nodev,noexec - tmpfs tmpfs rw
24 22 0:21 / /var/lib/with\040space ro - ext4 /dev/sdb rw
`

const unixTable = `Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 100 /run/berth/berth.sock
0000000000000000: 00000003 00000000 00000000 0001 03 101 /run/berth/berth.sock
`

func newRoot(t *testing.T) *root {
	t.Helper()
	r := &root{t: t, Node: Node{Root: t.TempDir(), Config: config.Default()}}
	for path, text := range map[string]string{
		"/proc/sys/kernel/osrelease":                   "6.12.3-amd64\n",
		"/proc/filesystems":                            "nodev\tproc\nnodev\toverlay\n\text4\n",
		"/proc/sys/kernel/seccomp/actions_avail":       "kill_process errno allow\n",
		"/sys/fs/cgroup/cgroup.controllers":            "cpuset cpu io memory hugetlb pids\n",
		"/proc/self/mountinfo":                         mounts,
		"/proc/sys/net/ipv4/ip_forward":                "1\n",
		"/proc/sys/net/bridge/bridge-nf-call-iptables": "1\n",
		"/proc/sys/user/max_user_namespaces":           "60000\n",
		"/proc/net/unix":                               unixTable,
		"/proc/net/tcp":                                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   0: 0100007F:2383 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 200 1 0 100 0\n",
		"/proc/42/comm":                                "berth\n",
		"/proc/42/status":                              "Name:\tberth\nCapEff:\t000001ffffffffff\n",
		"/etc/cni/net.d/10-net.conflist":               `{"name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}`,
		"/etc/resolv.conf":                             "nameserver 192.0.2.1\n",
		"/etc/crictl.yaml":                             "runtime-endpoint: unix:///run/berth/berth.sock\nimage-endpoint: unix:///run/berth/berth.sock\n",
		"/var/lib/kubelet/config.yaml":                 "containerRuntimeEndpoint: unix:///run/berth/berth.sock\ncgroupDriver: cgroupfs\n",
	} {
		r.write(path, text)
	}
	for _, program := range []string{"bridge", "host-local", "portmap", "runc"} {
		r.program("/opt/cni/bin/" + program)
	}
	r.link("/proc/42/fd/7", "socket:[100]")
	r.socket("/run/berth/berth.sock")
	helper := filepath.Join(r.Root, "opt/cni/bin/runc")
	r.Config.Engine.ShimPath, r.Config.Engine.PausePath = helper, helper
	r.Config.Runtimes = []*handler.Definition{{Name: "runc", Type: handler.OCI, Path: "/opt/cni/bin/runc", Origin: "/etc/berth/config.toml:3"}}
	return r
}

func (r *root) make(path string) string {
	r.t.Helper()
	file := r.at(path)
	test.Must(r.t, os.MkdirAll(filepath.Dir(file), 0o755))
	test.Must(r.t, os.RemoveAll(file))
	return file
}

func (r *root) write(path, text string) {
	r.t.Helper()
	test.Must(r.t, os.WriteFile(r.make(path), []byte(text), 0o644))
}

func (r *root) program(path string) {
	r.t.Helper()
	r.write(path, "#!/bin/sh\n")
	test.Must(r.t, os.Chmod(r.at(path), 0o755))
}

func (r *root) link(path, to string) {
	r.t.Helper()
	test.Must(r.t, os.Symlink(to, r.make(path)))
}

func (r *root) socket(path string) {
	r.t.Helper()
	test.Must(r.t, unix.Mknod(r.make(path), unix.S_IFSOCK|0o600, 0))
}

func (r *root) remove(path string) {
	r.t.Helper()
	test.Must(r.t, os.RemoveAll(r.at(path)))
}

// full mounts a tmpfs with options at path, and writes 2 MiB to it.
func (r *root) full(path, options string) {
	r.t.Helper()
	at := r.make(path)
	test.Must(r.t, os.Mkdir(at, 0o755))
	test.Must(r.t, unix.Mount("tmpfs", at, "tmpfs", 0, options))
	r.t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
	err := os.WriteFile(filepath.Join(at, "file"), make([]byte, 2<<20), 0o600)
	if strings.HasPrefix(options, "size=1m") != errors.Is(err, unix.ENOSPC) {
		r.t.Fatal(err)
	}
}

// process adds a process that has the socket with the inode open.
func (r *root) process(pid, name, inode string) {
	r.write("/proc/"+pid+"/comm", name+"\n")
	r.link("/proc/"+pid+"/fd/3", "socket:["+inode+"]")
}

func TestAHealthyNode(t *testing.T) {
	found := Examine(newRoot(t).Node)
	for _, f := range found {
		if f.Level != OK || f.Next != "" {
			t.Errorf("%+v", f)
		}
	}
	same := func(c check, f Finding) bool { return c.name == f.Check }
	found = slices.CompactFunc(found, func(a, b Finding) bool { return a.Check == b.Check })
	if !slices.EqualFunc(checks(), found, same) || Worst(found) != OK {
		t.Errorf("the findings are %v, the worst level is %s", found, Worst(found))
	}
}

// TestBrokenNodes breaks one thing at a time: exactly one finding is not ok.
func TestBrokenNodes(t *testing.T) {
	for what, c := range map[string]struct {
		breaks     func(*root)
		check      string
		level      Level
		text, next string
	}{
		"configuration": {func(r *root) {
			r.ConfigError = config.Problems{{Origin: config.Origin{File: "/c.toml", Line: 3, Column: 1}, Key: "x", Message: "unknown key"}}
		},
			"config", Fail, "/c.toml:3:1: x: unknown key", "berth check"},
		"handler without its ready label": {func(r *root) {
			r.write(r.Config.NodeLabels.File, "# +expiry-time=2026-11-27T22:00:00Z\nfeature.node.kubernetes.io/handler.kata=ready\n")
		}, "kubelet-restart", Warn, "a restart of the kubelet now ends pods of handlers that accept no pods, if their class selects the label ready: runc", "kubelet-restart-ends-pods"},
		"drop-in with a mistake": {func(r *root) {
			r.Config.Problems = config.Problems{{Origin: config.Origin{File: "/d.toml"}, Message: "bad"}}
		}, "config", Fail, "/d.toml: bad", "berth reload --wait"},
		"no shim":        {func(r *root) { r.Config.Engine.ShimPath = "" }, "config", Fail, "berth-shim was not found", "package"},
		"broken handler": {func(r *root) { r.Config.Broken = []config.Broken{{Name: "kata", Origin: "/k:1", Reason: "no shim"}} }, "handlers", Fail, `"kata" cannot run pods: no shim`, "correct /k:1"},
		// A missing binary must be one finding, not two.
		"broken handler of a drop-in": {func(r *root) {
			p := config.Problem{Origin: config.Origin{File: "/d.toml", Line: 2, Column: 1}, Key: "runtimes.x.runtime_path", Message: "/none does not exist"}
			r.Config.Problems, r.Config.Broken = config.Problems{p}, []config.Broken{{Name: "x", Origin: "/d.toml:1", Reason: p.Error()}}
		}, "handlers", Fail, `"x" cannot run pods: /d.toml:2:1: runtimes.x.runtime_path: /none does not exist`, "correct /d.toml:1"},
		"full disk":              {func(r *root) { r.full(r.Config.Engine.Root, "size=1m") }, "disk", Fail, "is almost full: 0 of 1 MiB", "berth image prune"},
		"no inodes":              {func(r *root) { r.full(r.Config.Engine.Root, "size=64m,nr_inodes=2") }, "disk", Fail, "and 0 of 2 inodes are free", "berth image prune"},
		"no nameserver":          {func(r *root) { r.write("/etc/resolv.conf", "search example\n") }, "registries", Warn, "names no nameserver", "add one"},
		"runtime gone":           {func(r *root) { r.Config.Runtimes[0].Path = "/gone" }, "handlers", Fail, "/gone does not exist", "/etc/berth/config.toml:3"},
		"runtime not executable": {func(r *root) { r.write("/opt/x", ""); r.Config.Runtimes[0].Path = "/opt/x" }, "handlers", Fail, "is not executable", "runtime_path"},
		"runtime of a shim gone": {func(r *root) { r.Config.Runtimes[0].ShimOptions = map[string]any{"BinaryName": "/none"} }, "handlers", Fail, "options.BinaryName /none does not exist", "correct"},
		"no handler":             {func(r *root) { r.Config.Runtimes = nil }, "handlers", Fail, "no handlers configured or discovered", "apt-get install crun"},
		"stale socket": {func(r *root) {
			r.write("/proc/net/unix", "")
			r.write("/proc/self/status", "CapEff:\t000001ffffffffff\n")
		}, "daemon", Warn, "is stale", "restart berth"},
		"no resource capability": {func(r *root) { r.write("/proc/42/status", "CapEff:\t000001fffeffffff\n") }, "privileges", Warn, "berth (pid 42) lacks CAP_SYS_RESOURCE", "CapabilityBoundingSet"},
		"no admin capability":    {func(r *root) { r.write("/proc/42/status", "CapEff:\t000001ffffdfffff\n") }, "privileges", Fail, "lacks CAP_SYS_ADMIN", "CapabilityBoundingSet"},
		"status unreadable":      {func(r *root) { r.write("/proc/42/status", "Name: x\n") }, "privileges", Warn, "has no CapEff", "/proc"},
		"no inotify instances": {func(r *root) {
			r.write("/proc/sys/fs/inotify/max_user_instances", "1\n")
			r.write("/proc/42/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
			r.link("/proc/42/fd/9", "anon_inode:inotify")
		}, "inotify", Warn, "all of its 1 inotify instances", "fs.inotify.max_user_instances=8192"},
		"no inotify watches": {func(r *root) {
			r.write("/proc/sys/fs/inotify/max_user_watches", "2\n")
			r.write("/proc/42/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n")
			r.link("/proc/42/fd/9", "anon_inode:inotify")
			r.write("/proc/42/fdinfo/9", "pos:\t0\ninotify wd:1 ino:a sdev:b\ninotify wd:2 ino:a sdev:b\n")
		}, "inotify", Warn, "all of its 2 inotify watches", "fs.inotify.max_user_watches=8192"},
		"no overlayfs":         {func(r *root) { r.write("/proc/filesystems", "\text4\n") }, "kernel", Fail, "no overlay file system", "modprobe overlay"},
		"kernel before idmap":  {func(r *root) { r.write("/proc/sys/kernel/osrelease", "5.15.0\n") }, "kernel", Warn, "hostUsers: false", "5.19"},
		"no seccomp":           {func(r *root) { r.remove("/proc/sys/kernel/seccomp/actions_avail") }, "kernel", Warn, "no seccomp", "CONFIG_SECCOMP_FILTER"},
		"no memory controller": {func(r *root) { r.write("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu pids\n") }, "kernel", Fail, "missing: memory", "cgroup_enable=memory"},
		"no cgroups":           {func(r *root) { r.remove("/sys/fs/cgroup") }, "kernel", Fail, "no cgroups", "mount -t cgroup2"},
		"kubelet's driver": {func(r *root) {
			r.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/berth/berth.sock\ncgroupDriver: systemd\n")
		}, "cgroup-driver", Warn, "the kubelet's cgroupDriver is systemd", "cgroupDriver: cgroupfs"},
		"a handler's driver": {func(r *root) { r.Config.Runtimes[0].ShimOptions = map[string]any{"SystemdCgroup": true} }, "cgroup-driver", Fail, "SystemdCgroup = true", "remove options.SystemdCgroup"},
		"systemd is not process 1": {func(r *root) {
			r.Config.Engine.CgroupDriver = config.CgroupDriverSystemd
			r.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/berth/berth.sock\n")
		}, "cgroup-driver", Fail, "process 1 is not", "cgroupfs"},
		"root noexec":           {func(r *root) { r.Config.Engine.Root = "/run/berth/root" }, "noexec", Fail, "mounted noexec", "remount,exec /run"},
		"root read-only":        {func(r *root) { r.Config.Engine.Root = "/var/lib/with space/x" }, "noexec", Fail, "mounted read-only", "remount,rw"},
		"no mounts":             {func(r *root) { r.remove("/proc/self/mountinfo") }, "noexec", Warn, "cannot read", "/proc"},
		"no forwarding":         {func(r *root) { r.write("/proc/sys/net/ipv4/ip_forward", "0\n") }, "sysctls", Fail, "ip_forward is 0", "sysctl -w"},
		"bridges pass iptables": {func(r *root) { r.write("/proc/sys/net/bridge/bridge-nf-call-iptables", "0\n") }, "sysctls", Warn, "bridge-nf-call-iptables is 0", "sysctl -w"},
		"no br_netfilter":       {func(r *root) { r.remove("/proc/sys/net/bridge") }, "sysctls", Warn, "br_netfilter", "modprobe"},
		"no user namespaces":    {func(r *root) { r.write("/proc/sys/user/max_user_namespaces", "0\n") }, "sysctls", Warn, "max_user_namespaces is 0", "sysctl -w"},
		"no network":            {func(r *root) { r.remove("/etc/cni/net.d") }, "cni", Warn, "no CNI configuration in /etc/cni/net.d", "CNI plugin"},
		"an invalid network":    {func(r *root) { r.write("/etc/cni/net.d/10-net.conflist", "{") }, "cni", Fail, "is not a valid CNI configuration", "correct it"},
		"an empty network":      {func(r *root) { r.write("/etc/cni/net.d/10-net.conflist", "{}") }, "cni", Fail, "no plugin configured", "correct it"},
		"no plugin":             {func(r *root) { r.remove("/opt/cni/bin/portmap") }, "cni", Fail, "needs the plugin portmap", "containernetworking-plugins"},
		"a handler's network":   {func(r *root) { r.Config.Runtimes[0].CNIConfDir = "/etc/cni/none" }, "cni", Warn, `pods of handler "runc" cannot start without one`, "CNI plugin"},
		"NRI socket of another process": {func(r *root) {
			r.Config.NRI.SocketPath = "/var/run/nri/nri.sock"
			r.write("/proc/net/unix", unixTable+"0: 00000002 00000000 00010000 0001 01 300 /run/nri/nri.sock\n")
			r.process("50", "containerd", "300")
		}, "nri", Fail, "is served by containerd (pid 50)", "nri.socket_path"},
		"agents' socket of containerd": {func(r *root) {
			r.Config.ContainerdAPI.Socket = "/run/agents.sock"
			r.write("/proc/net/unix", unixTable+"0: 00000002 00000000 00010000 0001 01 300 /run/agents.sock\n")
			r.process("50", "containerd", "300")
		}, "containerd-api", Fail, "is served by containerd (pid 50)", "stop that"},
		"port of another process": {func(r *root) { r.Config.Metrics.Address = "127.0.0.1:9091"; r.process("51", "prometheus", "200") }, "ports", Fail, "port 9091 of metrics.address is used by prometheus (pid 51)", "choose another"},
		"one port for two keys":   {func(r *root) { r.Config.Metrics.Address, r.Config.Streaming.Port = "127.0.0.1:7000", 7000 }, "ports", Fail, "both 7000", "metrics.address"},
		"kubelet uses another socket": {func(r *root) {
			r.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n")
		}, "kubelet", Fail, "runtime endpoint is unix:///run/crio/crio.sock (/var/lib/kubelet/config.yaml)", "restart the kubelet"},
		"kubelet uses another socket by its flag": {func(r *root) {
			r.process("60", "kubelet", "1")
			r.write("/proc/60/cmdline", "kubelet\x00--container-runtime-endpoint=unix:///run/x.sock\x00")
		}, "kubelet", Fail, "unix:///run/x.sock (its command line)", "restart the kubelet"},
		"kubelet without an endpoint": {func(r *root) { r.write("/var/lib/kubelet/config.yaml", "cgroupDriver: cgroupfs\n") }, "kubelet", Fail, "no runtime endpoint set", "containerRuntimeEndpoint: unix:///run/berth/berth.sock"},
		"kubelet pulls from another socket": {func(r *root) {
			r.write("/var/lib/kubelet/config.yaml", "containerRuntimeEndpoint: unix:///run/berth/berth.sock\nimageServiceEndpoint: unix:///run/i.sock\n")
		}, "kubelet", Fail, "image endpoint is unix:///run/i.sock", "remove that"},
		"no crictl.yaml":             {func(r *root) { r.remove("/etc/crictl.yaml") }, "crictl", Warn, "/etc/crictl.yaml does not exist", "runtime-endpoint: unix:///run/berth/berth.sock"},
		"crictl uses another socket": {func(r *root) { r.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/crio/crio.sock\n") }, "crictl", Warn, "crio.sock", "crictl config"},
		"crictl pulls from another socket": {func(r *root) {
			r.write("/etc/crictl.yaml", "runtime-endpoint: unix:///run/berth/berth.sock\nimage-endpoint: unix:///run/crio/crio.sock\n")
		}, "crictl", Warn, "image-endpoint", "crictl config"},
		"invalid crictl.yaml":     {func(r *root) { r.write("/etc/crictl.yaml", "- [") }, "crictl", Fail, "cannot read", "correct"},
		"crictl.yaml is a socket": {func(r *root) { r.socket("/etc/crictl.yaml") }, "crictl", Fail, "cannot read /etc/crictl.yaml: /etc/crictl.yaml is not a regular file", "correct"},
		"another CRI daemon":      {func(r *root) { r.socket("/run/containerd/containerd.sock") }, "other-runtimes", Warn, "containerd is also running", "stop containerd once it has no pods"},
		"kubelet uses another socket by a file of --config-dir": {func(r *root) {
			r.process("60", "kubelet", "1")
			r.write("/proc/60/cmdline", "kubelet\x00--config-dir=/etc/kubelet.d\x00")
			r.write("/etc/kubelet.d/10/x.conf", "containerRuntimeEndpoint: unix:///run/crio/crio.sock\n")
		}, "kubelet", Fail, "runtime endpoint is unix:///run/crio/crio.sock (/etc/kubelet.d/10/x.conf)", "restart the kubelet"},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRoot(t)
			c.breaks(r)
			var bad []Finding
			for _, f := range Examine(r.Node) {
				if f.Level != OK {
					bad = append(bad, f)
				}
			}
			if len(bad) != 1 {
				t.Fatalf("%d findings: %+v", len(bad), bad)
			}
			f := bad[0]
			if f.Check != c.check || f.Level != c.level || !strings.Contains(f.Text, c.text) || !strings.Contains(f.Next, c.next) {
				t.Errorf("got %+v", f)
			}
			test.Equal(t, "the worst level", Worst(bad), c.level)
		})
	}
}

// The endpoint in the installer's drop-in wins over the one in kubeadm's files.
func TestKubeletLedByDropIn(t *testing.T) {
	r := newRoot(t)
	r.write("/var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock --v=2"`+"\n")
	r.write("/etc/systemd/system/kubelet.service.d/99-berth.conf", "[Service]\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_KUBEADM_ARGS --container-runtime-endpoint=unix:///run/berth/berth.sock\n")
	for _, f := range Examine(r.Node) {
		if (f.Check == "kubelet" || f.Check == "kubeadm") && f.Level == Fail {
			t.Errorf("got %+v", f)
		}
	}
}

// kubeadm's own files set the endpoint for the kubelet's next start.
func TestKubeadm(t *testing.T) {
	r := newRoot(t)
	r.write("/var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/crio/crio.sock --v=2"`+"\n")
	levels := map[string]Level{}
	for _, f := range Examine(r.Node) {
		levels[f.Check] = f.Level
	}
	if levels["kubelet"] != Fail || levels["kubeadm"] != Fail {
		t.Errorf("got %v", levels)
	}
	r.write("/var/lib/kubelet/kubeadm-flags.env", `KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///var/run/berth/berth.sock"`+"\n")
	r.socket("/run/crio/crio.sock")
	for _, f := range kubeadm(r.Node) {
		if f.Level != Warn || !strings.Contains(f.Next, "criSocket: unix:///run/berth/berth.sock") {
			t.Errorf("two runtimes: %+v", f)
		}
	}
}

// berth on containerd's socket does not count as another runtime, but kubeadm finds two sockets.
func TestContainerdAPI(t *testing.T) {
	r := newRoot(t)
	const path = "/run/containerd/containerd.sock"
	r.Config.ContainerdAPI.Socket = path
	r.socket(path)
	r.write("/proc/net/unix", unixTable+"0: 00000002 00000000 00010000 0001 01 300 "+path+"\n")
	r.process("50", "berth", "300")
	for _, f := range Examine(r.Node) {
		if f.Level != OK {
			t.Errorf("served by berth: %+v", f)
		}
	}
	r.write("/etc/kubernetes/kubelet.conf", "")
	for _, f := range kubeadm(r.Node) {
		if f.Level != Warn || !strings.Contains(f.Text, path) {
			t.Errorf("for kubeadm: %+v", f)
		}
	}
	r.process("50", "containerd", "300")
	bad := map[string]bool{}
	for _, f := range Examine(r.Node) {
		bad[f.Check] = f.Level != OK
	}
	if !bad["containerd-api"] || !bad["other-runtimes"] {
		t.Errorf("served by containerd: %v", bad)
	}
}

// On a node without any files, each finding has a next step.
func TestAnEmptyNode(t *testing.T) {
	found := Examine(Node{Root: t.TempDir()})
	if Worst(found) != Fail {
		t.Errorf("got %+v", found)
	}
	for _, f := range found {
		if f.Level != OK && f.Next == "" {
			t.Errorf("the finding of %s has no next step: %+v", f.Check, f)
		}
	}
	if text, err := json.Marshal(found); err != nil || !strings.Contains(string(text), `"check":"config"`) {
		t.Errorf("%v: %s", err, text)
	}
}

func TestOlder(t *testing.T) {
	for release, want := range map[string]bool{"6.12.3-amd64": false, "5.10+": false, "5.9-rc1": true, "4.19.0-27-amd64": true, "x": false, "": false} {
		test.Equal(t, release, older(release, "5.10"), want)
	}
}

// A program "kubelet" in a pod is ignored, and so is a CRI daemon that handlers forward to.
func TestWhatIsNoFault(t *testing.T) {
	for name, change := range map[string]func(*root){
		"a pod's program": func(r *root) {
			r.process("60", "kubelet", "1")
			r.write("/proc/60/cmdline", "kubelet\x00--container-runtime-endpoint=unix:///run/x.sock\x00")
			r.link("/proc/1/ns/pid", "pid:[1]")
			r.link("/proc/60/ns/pid", "pid:[2]")
		},
		"a daemon that a handler forwards to": func(r *root) {
			r.socket("/run/containerd/containerd.sock")
			r.Config.Runtimes = append(r.Config.Runtimes, &handler.Definition{Name: "theirs", Type: handler.CRI, Endpoint: "/run/containerd/containerd.sock"})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRoot(t)
			change(r)
			for _, f := range Examine(r.Node) {
				if f.Level == Fail || f.Check == "other-runtimes" && (f.Level != OK || !strings.Contains(f.Text, "other CRI daemon") && !strings.Contains(f.Text, "handlers forward to it: theirs")) {
					t.Errorf("%+v", f)
				}
			}
		})
	}
}

func TestScarce(t *testing.T) {
	for _, c := range []struct {
		free, all, inodes, allInodes uint64
		want                         Level
	}{
		{50, 100, 50, 100, OK},
		{9, 100, 50, 100, Warn},
		{50, 100, 4, 100, Warn},
		{0, 100, 50, 100, Fail},
		{50, 100, 0, 100, Fail},
		{50, 100, 0, 0, OK},
	} {
		test.Equal(t, fmt.Sprintf("%+v", c), scarce(unix.Statfs_t{Bavail: c.free, Blocks: c.all, Ffree: c.inodes, Files: c.allInodes}), c.want)
	}
}

// The doctor connects to the registries that hosts.toml names, and warns of those that do
// not answer.
func TestRegistries(t *testing.T) {
	open := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer open.Close()
	shut := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	shut.Close()
	n := newRoot(t).Node
	n.Root, n.Config.Registry.HostsDir = "", t.TempDir()
	for name, text := range map[string]string{
		"good.example": "server = \"http://" + open.Addr().String() + "\"\n",
		"bad.example":  "[host.\"https://" + shut.Addr().String() + "\"]\n[host.\"https://none.invalid\"]\n",
	} {
		dir := filepath.Join(n.Config.Registry.HostsDir, name)
		test.Must(t, errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(text), 0o644)))
	}
	said := ""
	for _, f := range registries(n) {
		if f.Level != Warn {
			t.Errorf("%+v", f)
		}
		said += f.Text + "\n"
	}
	if !strings.Contains(said, shut.Addr().String()) || !strings.Contains(said, "none.invalid:443") || strings.Contains(said, open.Addr().String()) {
		t.Errorf("the findings are %s", said)
	}
}
