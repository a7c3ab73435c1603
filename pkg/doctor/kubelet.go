package doctor

import (
	"cmp"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/pkg/kubeletconf"
	"github.com/berth-cri/berth/pkg/nodefs"
)

// kubeletFiles are where its configuration is when no process says.
const (
	kubeletConfig  = "/var/lib/kubelet/config.yaml"
	instanceConfig = "/var/lib/kubelet/instance-config.yaml"
	kubeadmFlags   = "/var/lib/kubelet/kubeadm-flags.env"
)

// kubeletSettings are what matters here of the kubelet's, and where each is from.
type kubeletSettings struct {
	endpoint, endpointFrom   string
	imageEndpoint, imageFrom string
	cgroupDriver, driverFrom string
	running                  bool
}

// kubeletYAML is KubeletConfiguration, as far as it is looked at.
type kubeletYAML struct {
	ContainerRuntimeEndpoint string `json:"containerRuntimeEndpoint"`
	ImageServiceEndpoint     string `json:"imageServiceEndpoint"`
	CgroupDriver             string `json:"cgroupDriver"`
}

// kubeletSettings reads files and, if it runs, the kubelet's command line, in
// the order in which later ones win.
func (n Node) kubeletSettings() (kubeletSettings, bool) {
	var k kubeletSettings
	there := false
	files, arguments := []string{kubeletConfig, instanceConfig}, []string(nil)
	for _, p := range n.processes() {
		if p.name == "kubelet" && n.own(p.pid) {
			k.running, there = true, true
			arguments = n.arguments(p.pid)
			if f := flag(arguments, "config"); f != "" {
				files[0] = f
			}
			if dir := flag(arguments, "config-dir"); dir != "" {
				more, _ := kubeletconf.DropIns(nodefs.Root(cmp.Or(n.Root, "/")), dir) // it does not start with what it cannot read
				files = append(files, more...)
			}
		}
	}
	for _, f := range files {
		text, err := n.read(f)
		if err != nil {
			continue
		}
		var y kubeletYAML
		if yaml.Unmarshal([]byte(text), &y) == nil {
			there = true
			k.take(f, y)
		}
	}
	// kubeadm's flags go to the kubelet's command line by the unit.
	if text, err := n.read(kubeadmFlags); err == nil && !k.running {
		there = true
		k.takeFlags(kubeadmFlags, strings.Fields(strings.ReplaceAll(text, `"`, " ")))
	}
	if text, err := n.read(kubeletconf.DropIn); err == nil && !k.running {
		k.takeFlags(kubeletconf.DropIn, strings.Fields(text))
	}
	k.takeFlags("its command line", arguments)
	return k, there
}

func (k *kubeletSettings) take(from string, y kubeletYAML) {
	set(&k.endpoint, &k.endpointFrom, y.ContainerRuntimeEndpoint, from)
	set(&k.imageEndpoint, &k.imageFrom, y.ImageServiceEndpoint, from)
	set(&k.cgroupDriver, &k.driverFrom, y.CgroupDriver, from)
}

func (k *kubeletSettings) takeFlags(from string, arguments []string) {
	set(&k.endpoint, &k.endpointFrom, flag(arguments, "container-runtime-endpoint"), from)
	set(&k.imageEndpoint, &k.imageFrom, flag(arguments, "image-service-endpoint"), from)
	set(&k.cgroupDriver, &k.driverFrom, flag(arguments, "cgroup-driver"), from)
}

func set(value, origin *string, v, from string) {
	if v != "" {
		*value, *origin = v, from
	}
}

// kubelet looks whether it talks to berth.
func kubelet(n Node) []Finding {
	k, there := n.kubeletSettings()
	ours := "unix://" + n.Config.Server.Socket
	if !there {
		return []Finding{fine("no kubelet found; it needs containerRuntimeEndpoint: " + ours)}
	}
	var found []Finding
	switch {
	case k.endpoint == "":
		found = append(found, fail("the kubelet has no runtime endpoint set and uses containerd", "set containerRuntimeEndpoint: "+ours+" in "+kubeletConfig+", and restart the kubelet"))
	case !same(k.endpoint, ours):
		found = append(found, fail(fmt.Sprintf("the kubelet's runtime endpoint is %s (%s), not berth", k.endpoint, k.endpointFrom), "set the endpoint to "+ours+" there, and restart the kubelet"))
	}
	if k.imageEndpoint != "" && !same(k.imageEndpoint, ours) {
		found = append(found, fail(fmt.Sprintf("the kubelet's image endpoint is %s (%s); berth cannot see those images", k.imageEndpoint, k.imageFrom), "remove that setting, and restart the kubelet"))
	}
	return or(found, fmt.Sprintf("the kubelet uses berth (%s)", k.endpointFrom))
}

// kubeadm looks whether it would choose another runtime at the next join or
// upgrade.
func kubeadm(n Node) []Finding {
	ours := "unix://" + n.Config.Server.Socket
	var found []Finding
	for _, f := range []string{kubeadmFlags, instanceConfig} {
		text, err := n.read(f)
		if err != nil {
			continue
		}
		endpoint := flag(strings.Fields(strings.ReplaceAll(text, `"`, " ")), "container-runtime-endpoint")
		if f == instanceConfig {
			var y kubeletYAML
			if yaml.Unmarshal([]byte(text), &y) == nil {
				endpoint = y.ContainerRuntimeEndpoint
			}
		}
		// The installer's drop-in wins over them, also after an upgrade.
		if endpoint != "" && !same(endpoint, ours) && !n.exists(kubeletconf.DropIn) {
			found = append(found, fail(fmt.Sprintf("kubeadm's file %s contains %s", f, endpoint),
				"write "+ours+" there, set the node's annotation kubeadm.alpha.kubernetes.io/cri-socket to it, and restart the kubelet"))
		}
	}
	if others := n.otherSockets(); len(others) > 0 && n.isKubeadmNode() {
		found = append(found, warn("kubeadm takes for the runtime what it finds at "+strings.Join(others, ", "),
			"set criSocket: "+ours+" under nodeRegistration, or --cri-socket "+ours))
	}
	return or(found, "kubeadm finds no other runtime")
}

// isKubeadmNode says whether kubeadm made this node, or may.
func (n Node) isKubeadmNode() bool {
	return n.exists(kubeadmFlags) || n.exists("/etc/kubernetes") || n.exists("/usr/bin/kubeadm")
}

// foreignSockets are where other CRI daemons listen.
var foreignSockets = []struct{ path, name string }{
	{"/run/containerd/containerd.sock", "containerd"},
	{"/run/crio/crio.sock", "CRI-O"},
	{"/run/cri-dockerd.sock", "cri-dockerd"},
}

func (n Node) otherSockets() []string {
	var there []string
	for _, s := range foreignSockets {
		if n.isSocket(s.path) && !same(s.path, n.Config.Server.Socket) {
			there = append(there, s.path)
		}
	}
	return there
}

// servesAgents says whether a socket is the one at which berth itself serves
// containerd's API.
func (n Node) servesAgents(path string) bool {
	if ours := n.Config.ContainerdAPI.Socket; ours == "" || !same(path, ours) {
		return false
	}
	p, found := n.listener(path)
	return !found || p.name == "berth"
}

// otherRuntimes looks for other CRI daemons. They may stay; what they share with
// berth is what can go wrong. One that handlers lead to must stay.
func otherRuntimes(n Node) []Finding {
	var found []Finding
	var used []string
	for _, s := range foreignSockets {
		if !n.isSocket(s.path) || same(s.path, n.Config.Server.Socket) || n.servesAgents(s.path) {
			continue
		}
		if names := n.leadTo(s.path); len(names) > 0 {
			used = append(used, fmt.Sprintf("%s runs, and handlers lead to it: %s", s.name, strings.Join(names, ", ")))
		} else {
			found = append(found, warn(fmt.Sprintf("%s is also running (%s): crictl and kubeadm may use it as the node's runtime", s.name, s.path),
				"configure berth's socket in crictl and kubeadm, and stop "+s.name+" once it has no pods"))
		}
	}
	if len(used) == 0 {
		used = []string{"no other CRI daemon found"}
	}
	return or(found, strings.Join(used, "; "))
}

// leadTo are the handlers whose pods the daemon at a socket runs.
func (n Node) leadTo(path string) []string {
	var names []string
	for _, d := range n.Config.Runtimes {
		if d.Endpoint != "" && same(strings.TrimPrefix(d.Endpoint, "unix://"), path) {
			names = append(names, d.Name)
		}
	}
	return names
}

// crictl looks whether it asks berth.
func crictl(n Node) []Finding {
	const file = "/etc/crictl.yaml"
	ours := "unix://" + n.Config.Server.Socket
	text, err := n.read(file)
	if err != nil {
		return []Finding{warn(file+" does not exist: crictl tries the sockets of other daemons", `printf 'runtime-endpoint: `+ours+`\nimage-endpoint: `+ours+`\n' > `+file)}
	}
	var c struct {
		Runtime string `json:"runtime-endpoint"`
		Image   string `json:"image-endpoint"`
	}
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return []Finding{fail(fmt.Sprintf("cannot read %s: %v", file, err), "correct it")}
	}
	if !same(c.Runtime, ours) {
		return []Finding{warn(fmt.Sprintf("%s has runtime-endpoint %q", file, c.Runtime), "crictl config --set runtime-endpoint="+ours)}
	}
	if c.Image != "" && !same(c.Image, ours) {
		return []Finding{warn(fmt.Sprintf("%s has image-endpoint %q", file, c.Image), "crictl config --set image-endpoint="+ours)}
	}
	return []Finding{fine("crictl uses berth")}
}
