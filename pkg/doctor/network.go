package doctor

import (
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// network is a CNI configuration, as far as it is looked at.
type network struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Plugins []struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	} `json:"plugins"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// types are the plugins that the network is made by.
func (c network) types() []string {
	var all []string
	add := func(names ...string) {
		for _, name := range names {
			if name != "" {
				all = append(all, name)
			}
		}
	}
	add(c.Type, c.IPAM.Type)
	for _, p := range c.Plugins {
		add(p.Type, p.IPAM.Type)
	}
	return all
}

// networks reads those of a directory that count, in lexical order. A file that
// is none has an error.
func (n Node) networks(dir string) (files []string, networks []network, errs []error) {
	for _, name := range n.list(dir) {
		switch filepath.Ext(name) {
		case ".conf", ".conflist", ".json":
		default:
			continue
		}
		file := filepath.Join(dir, name)
		var c network
		text, err := n.read(file)
		if err == nil {
			err = json.Unmarshal([]byte(text), &c)
		}
		if err == nil && len(c.types()) == 0 {
			err = fmt.Errorf("no plugin configured")
		}
		files, networks, errs = append(files, file), append(networks, c), append(errs, err)
		if limit := n.Config.CNI.MaxConfNum; limit > 0 && len(files) == limit {
			break
		}
	}
	return files, networks, errs
}

func (n Node) usesBridge() bool {
	_, networks, _ := n.networks(n.Config.CNI.ConfDir)
	for _, c := range networks {
		if slices.Contains(c.types(), "bridge") {
			return true
		}
	}
	return false
}

// cni looks at the networks of the node and of handlers, and for their plugins.
func cni(n Node) []Finding {
	found := n.cniDir(n.Config.CNI.ConfDir, "the node stays NotReady until one exists")
	for _, d := range n.Config.Runtimes {
		if d.CNIConfDir != "" && d.CNIConfDir != n.Config.CNI.ConfDir {
			found = append(found, n.cniDir(d.CNIConfDir, fmt.Sprintf("pods of handler %q cannot start without one", d.Name))...)
		}
	}
	return or(found, "all plugins of the networks in "+n.Config.CNI.ConfDir+" are installed")
}

func (n Node) cniDir(dir, otherwise string) []Finding {
	var found []Finding
	files, networks, errs := n.networks(dir)
	if len(files) == 0 {
		return []Finding{warn("no CNI configuration in "+dir+": "+otherwise, "install the cluster's CNI plugin")}
	}
	for i, file := range files {
		if errs[i] != nil {
			found = append(found, fail(fmt.Sprintf("%s is not a valid CNI configuration: %v", file, errs[i]), "correct it, or remove it"))
			continue
		}
		for _, plugin := range networks[i].types() {
			if !n.hasPlugin(plugin) {
				found = append(found, fail(fmt.Sprintf("%s needs the plugin %s, which was not found in %s", file, plugin, strings.Join(n.Config.CNI.BinDirs, ", ")),
					"install it (on Debian: apt-get install containernetworking-plugins), or correct cni.bin_dirs"))
			}
		}
	}
	return found
}

func (n Node) hasPlugin(name string) bool {
	return slices.ContainsFunc(n.Config.CNI.BinDirs, func(dir string) bool { return n.executable(filepath.Join(dir, name)) == "" })
}

// nriDefault is where NRI plugins connect by custom.
const nriDefault = "/var/run/nri/nri.sock"

// nriSocket looks who has the socket of NRI plugins: one runtime of a node can.
func nriSocket(n Node) []Finding {
	c := n.Config.NRI
	if c.Disable || c.SocketPath == "" {
		if p, found := n.listener(nriDefault); found {
			return []Finding{fine(fmt.Sprintf("%s is served by %s; plugins connected there do not see berth's pods", nriDefault, p))}
		}
		return []Finding{fine("plugins cannot connect; nri.socket_path is empty")}
	}
	p, found := n.listener(c.SocketPath)
	if found && p.name != "berth" {
		return []Finding{fail(fmt.Sprintf("nri.socket_path %s is served by %s", c.SocketPath, p), "stop NRI there, or choose another nri.socket_path")}
	}
	return []Finding{fine(c.SocketPath + " is not used by another process")}
}

func agentsSocket(n Node) []Finding {
	path := n.Config.ContainerdAPI.Socket
	if path == "" {
		return []Finding{fine("containerd's API is not served; containerd_api.socket is empty")}
	}
	if p, found := n.listener(path); found && p.name != "berth" {
		return []Finding{fail(fmt.Sprintf("containerd_api.socket %s is served by %s; berth does not start beside it", path, p), "stop that, or choose another containerd_api.socket")}
	}
	return []Finding{fine(path + " is not used by another process")}
}

// ports looks who has the fixed ports of the configuration.
func ports(n Node) []Finding {
	wanted := map[string]string{}
	if p := n.Config.Streaming.Port; p != 0 {
		wanted["streaming.port"] = strconv.Itoa(p)
	}
	if _, p, err := net.SplitHostPort(n.Config.Metrics.Address); err == nil && !strings.HasPrefix(n.Config.Metrics.Address, "unix://") {
		wanted["metrics.address"] = p
	}
	var found []Finding
	for _, key := range []string{"metrics.address", "streaming.port"} {
		port, fixed := wanted[key]
		if !fixed || port == "0" {
			continue
		}
		if p, taken := n.listensOn(port); taken && p.name != "berth" {
			found = append(found, fail(fmt.Sprintf("port %s of %s is used by %s", port, key, p), "choose another "+key))
		}
	}
	if s := wanted["streaming.port"]; s != "" && s == wanted["metrics.address"] {
		found = append(found, fail("metrics.address and streaming.port are both "+s, "choose another metrics.address"))
	}
	return or(found, "no port conflicts")
}

// listensOn returns who listens on a TCP port, on whatever address.
func (n Node) listensOn(port string) (process, bool) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return process{}, false
	}
	suffix := fmt.Sprintf(":%04X", number)
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := n.read(table)
		if err != nil {
			continue
		}
		for line := range strings.Lines(text) {
			// sl local_address rem_address st … inode; state 0A is LISTEN.
			f := strings.Fields(line)
			if len(f) >= 10 && f[3] == "0A" && strings.HasSuffix(f[1], suffix) {
				p, found := n.holder(f[9])
				if !found {
					p = process{name: "another process"}
				}
				return p, true
			}
		}
	}
	return process{}, false
}
