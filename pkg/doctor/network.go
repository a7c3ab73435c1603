package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-cri/berth/pkg/config/registryhosts"
)

// plugin is an entry of a CNI configuration, with its IPAM plugin.
type plugin struct {
	Type string `json:"type"`
	IPAM struct {
		Type string `json:"type"`
	} `json:"ipam"`
}

// network is a CNI configuration.
type network struct {
	file string
	// plugins are the names of its plugins, including IPAM.
	plugins []string
	// err is why the file is not a valid configuration.
	err error
}

func (n Node) network(file string) network {
	text, err := n.read(file)
	if err != nil {
		return network{file: file, err: err}
	}
	var c struct {
		plugin
		Plugins []plugin `json:"plugins"`
	}
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return network{file: file, err: err}
	}
	var types []string
	for _, p := range append([]plugin{c.plugin}, c.Plugins...) {
		types = append(types, p.Type, p.IPAM.Type)
	}
	types = slices.DeleteFunc(types, func(name string) bool { return name == "" })
	if len(types) == 0 {
		err = errors.New("no plugin configured")
	}
	return network{file, types, err}
}

// networks reads the configurations of a directory that are in use, in lexical order.
func (n Node) networks(dir string) (all []network) {
	for _, name := range n.list(dir) {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name)) {
			continue
		}
		all = append(all, n.network(filepath.Join(dir, name)))
		if limit := n.Config.CNI.MaxConfNum; limit > 0 && len(all) == limit {
			break
		}
	}
	return all
}

func (n Node) usesBridge() bool {
	return slices.ContainsFunc(n.networks(n.Config.CNI.ConfDir), func(c network) bool {
		return slices.Contains(c.plugins, "bridge")
	})
}

// cni checks the networks of the node and of handlers, and their plugins.
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
	networks := n.networks(dir)
	if len(networks) == 0 {
		return []Finding{warn("no CNI configuration in "+dir+": "+otherwise, "install the cluster's CNI plugin")}
	}
	for _, c := range networks {
		if c.err != nil {
			found = append(found, fail(fmt.Sprintf("%s is not a valid CNI configuration: %v", c.file, c.err), "correct it, or remove it"))
			continue
		}
		for _, plugin := range c.plugins {
			if !slices.ContainsFunc(n.Config.CNI.BinDirs, func(dir string) bool { return n.executable(filepath.Join(dir, plugin)) == "" }) {
				found = append(found, fail(fmt.Sprintf("%s needs the plugin %s, which was not found in %s", c.file, plugin, strings.Join(n.Config.CNI.BinDirs, ", ")),
					"install it (on Debian: apt-get install containernetworking-plugins), or correct cni.bin_dirs"))
			}
		}
	}
	return found
}

// nriDefault is the default socket of containerd and CRI-O for NRI plugins.
const nriDefault = "/var/run/nri/nri.sock"

// nriSocket checks that no other process serves the configured socket for NRI plugins.
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
		return []Finding{fail(fmt.Sprintf("containerd_api.socket %s is served by %s; berth does not start beside it", path, p), "stop that process, or choose another containerd_api.socket")}
	}
	return []Finding{fine(path + " is not used by another process")}
}

// ports checks that no other process uses the configured ports.
func ports(n Node) []Finding {
	var metrics, streaming string
	if _, p, err := net.SplitHostPort(n.Config.Metrics.Address); err == nil && p != "0" && !strings.HasPrefix(n.Config.Metrics.Address, "unix://") {
		metrics = p
	}
	if p := n.Config.Streaming.Port; p != 0 {
		streaming = strconv.Itoa(p)
	}
	var found []Finding
	for _, fixed := range [][2]string{{"metrics.address", metrics}, {"streaming.port", streaming}} {
		key, port := fixed[0], fixed[1]
		if p, taken := n.listensOn(port); taken && p.name != "berth" {
			found = append(found, fail(fmt.Sprintf("port %s of %s is used by %s", port, key, p), "choose another "+key))
		}
	}
	if streaming != "" && streaming == metrics {
		found = append(found, fail("metrics.address and streaming.port are both "+streaming, "choose another metrics.address"))
	}
	return or(found, "no port conflicts")
}

// listensOn returns the process that listens on a TCP port, at any address.
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

const (
	// dialTimeout bounds all connections together; they are opened in parallel.
	dialTimeout = 2 * time.Second
	// maxRegistries bounds the number of connections.
	maxRegistries = 32
)

// registries connects only to registries that the configuration names. If the node's root is
// mounted elsewhere, it only reads files: this machine's network differs from the node's.
func registries(n Node) []Finding {
	var found []Finding
	if !strings.Contains(n.value("/etc/resolv.conf"), "nameserver") {
		found = append(found, warn("/etc/resolv.conf names no nameserver: registries are not found by name", "add one, or let the node's network service add one"))
	}
	dir := n.Config.Registry.HostsDir
	var addresses []string
	for _, name := range n.list(dir) {
		if text, err := n.read(filepath.Join(dir, name, "hosts.toml")); err == nil {
			addresses = append(addresses, registryhosts.Addresses([]byte(text))...)
		}
	}
	if n.Root != "" && n.Root != "/" {
		addresses = nil
	}
	addresses = addresses[:min(len(addresses), maxRegistries)]
	failed := make([]error, len(addresses))
	var dials sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	for i, address := range addresses {
		dials.Go(func() { failed[i] = dial(ctx, address) })
	}
	dials.Wait()
	for i, err := range failed {
		if err != nil {
			found = append(found, warn(fmt.Sprintf("cannot connect to the registry at %s, which %s names: %v", addresses[i], dir, err),
				"check the node's DNS, routes and firewall; a daemon that uses a proxy may still reach it"))
		}
	}
	return or(found, fmt.Sprintf("a nameserver is configured; registries in %s that accept connections: %d", dir, len(addresses)))
}

// dial opens and closes a connection. Its error has only the cause, without the address.
func dial(ctx context.Context, address string) error {
	connection, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		if cause := errors.Unwrap(err); cause != nil {
			return cause
		}
		return err
	}
	return connection.Close()
}
