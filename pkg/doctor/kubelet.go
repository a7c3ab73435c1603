package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/pkg/kubeletconf"
	"github.com/berth-cri/berth/pkg/nodefs"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// kubeletConf finds the node's kubelet and its configuration. It ignores the error: a kubelet does
// not start with files that it cannot read.
func (n Node) kubeletConf() kubeletconf.Kubelet {
	k, _ := kubeletconf.Find(nodefs.Root(cmp.Or(n.Root, "/")))
	return k
}

// kubelet checks that the node's kubelet uses berth.
func kubelet(n Node) []Finding {
	k := n.kubeletConf()
	ours := "unix://" + n.Config.Server.Socket
	if !k.Configured() {
		return []Finding{fine("no kubelet found; to use berth, a kubelet needs containerRuntimeEndpoint: " + ours)}
	}
	endpoint, from := k.Setting("containerRuntimeEndpoint", "container-runtime-endpoint")
	images, imagesFrom := k.Setting("imageServiceEndpoint", "image-service-endpoint")
	var found []Finding
	switch {
	case endpoint == "" && k.K3s:
		found = append(found, fail("k3s has no runtime endpoint set and runs its own containerd", "follow docs/install.md#k3s"))
	case endpoint == "":
		found = append(found, fail("the kubelet has no runtime endpoint set and uses containerd", "set containerRuntimeEndpoint: "+ours+" in "+kubeletconf.Config+", and restart the kubelet"))
	case !same(endpoint, ours):
		found = append(found, fail(fmt.Sprintf("the kubelet's runtime endpoint is %s (%s), not berth", endpoint, from), "set the endpoint to "+ours+" there, and restart the kubelet"))
	}
	if images != "" && !same(images, ours) {
		found = append(found, fail(fmt.Sprintf("the kubelet's image endpoint is %s (%s); berth cannot see those images", images, imagesFrom), "remove that setting, and restart the kubelet"))
	}
	return or(found, fmt.Sprintf("the kubelet uses berth (%s)", from))
}

// kubeadm checks whether the next join or upgrade would select another runtime.
func kubeadm(n Node) []Finding {
	ours := "unix://" + n.Config.Server.Socket
	var found []Finding
	for _, f := range []string{kubeletconf.KubeadmFlags, kubeletconf.InstanceConfig} {
		text, err := n.read(f)
		if err != nil {
			continue
		}
		endpoint := kubeletconf.EndpointIn(text)
		// The installer's drop-in overrides these files, also after an upgrade.
		if endpoint != "" && !same(endpoint, ours) && !n.exists(kubeletconf.DropIn) {
			found = append(found, fail(fmt.Sprintf("kubeadm's file %s contains %s", f, endpoint),
				"write "+ours+" there, set the node's annotation kubeadm.alpha.kubernetes.io/cri-socket to it, and restart the kubelet"))
		}
	}
	made := n.exists(kubeletconf.KubeadmFlags) || n.exists("/etc/kubernetes") || n.exists("/usr/bin/kubeadm") // kubeadm made the node, or may do so later
	if others := n.otherSockets(); made && len(others) > 0 {
		found = append(found, warn("kubeadm may select the runtime at "+strings.Join(others, ", "),
			"set criSocket: "+ours+" under nodeRegistration, or --cri-socket "+ours))
	}
	return or(found, "kubeadm finds no other runtime")
}

// foreignSockets are the sockets of other CRI daemons.
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

// servesAgents reports whether berth itself serves containerd's API at a socket.
func (n Node) servesAgents(path string) bool {
	if ours := n.Config.ContainerdAPI.Socket; ours == "" || !same(path, ours) {
		return false
	}
	p, found := n.listener(path)
	return !found || p.name == "berth"
}

// otherRuntimes finds other CRI daemons. They may stay, and must stay if handlers forward to them.
// Tools that choose between their sockets and berth's may choose wrongly.
func otherRuntimes(n Node) []Finding {
	var found []Finding
	var used []string
	for _, s := range foreignSockets {
		if !n.isSocket(s.path) || same(s.path, n.Config.Server.Socket) || n.servesAgents(s.path) {
			continue
		}
		if names := n.handlersAt(s.path); len(names) > 0 {
			used = append(used, fmt.Sprintf("%s is running, and handlers forward to it: %s", s.name, strings.Join(names, ", ")))
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

// handlersAt returns the handlers that forward to the daemon at a socket.
func (n Node) handlersAt(path string) []string {
	var names []string
	for _, d := range n.Config.Runtimes {
		if d.Endpoint != "" && same(strings.TrimPrefix(d.Endpoint, "unix://"), path) {
			names = append(names, d.Name)
		}
	}
	return names
}

// crictl checks that crictl uses berth.
func crictl(n Node) []Finding {
	const file = "/etc/crictl.yaml"
	ours := "unix://" + n.Config.Server.Socket
	text, err := n.read(file)
	if errors.Is(err, fs.ErrNotExist) {
		return []Finding{warn(file+" does not exist: crictl tries the sockets of other daemons", `printf 'runtime-endpoint: `+ours+`\nimage-endpoint: `+ours+`\n' > `+file)}
	}
	var c struct {
		Runtime string `json:"runtime-endpoint"`
		Image   string `json:"image-endpoint"`
	}
	if err := cmp.Or(err, yaml.Unmarshal([]byte(text), &c)); err != nil {
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

// kubeletRestart checks the labels that a restarted kubelet needs to keep its pods. The pods'
// requests and the node's capacity are only in the cluster.
func kubeletRestart(n Node) []Finding {
	text, err := n.read(n.Config.NodeLabels.File)
	if n.Config.NodeLabels.File == "" || err != nil {
		return []Finding{fine("berth writes no labels for this node; \"kubectl berth audit\" shows whether a restart of the kubelet is safe")}
	}
	lines := strings.Split(text, "\n")
	var gone []string
	for _, d := range n.Config.Runtimes {
		if !slices.Contains(lines, nodelabel.Handler(d.Name)+"="+nodelabel.Ready) {
			gone = append(gone, d.Name)
		}
	}
	if len(gone) > 0 {
		return []Finding{warn("a restart of the kubelet now ends pods of handlers that accept no pods, if their class selects the label ready: "+strings.Join(gone, ", "),
			"do not restart it before \"berth status\" shows these handlers ready, or \"kubectl berth audit\" no longer reports kubelet-restart-ends-pods")}
	}
	return []Finding{fine("all handlers have the labels that a restarted kubelet checks; \"kubectl berth audit\" checks capacity")}
}
