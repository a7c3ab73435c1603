// Package standard does the work of containernetworking's standard CNI plugins in this process, so
// that a pod does not wait for the start of programs.
//
// A network is served here only if the node's binaries are containernetworking's and all keys of
// its configuration are known; see Plugins.Serves. The result, the interfaces with their addresses,
// routes and sysctls, and the files of host-local are then those of the plugins, version 1.10.
// Masquerading differs: it is one table of nftables instead of a chain for each pod; see Masquerade.
package standard

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/containernetworking/plugins/pkg/ip"
)

// Plugins is the invoke.Exec for networks that Serves accepts: it does ADD and DEL of standard
// plugins itself, and runs the program for everything else. All methods may be called concurrently.
type Plugins struct {
	invoke.Exec
	masquerade *Masquerade

	bridges sync.Mutex // held while a bridge is created and configured

	mu      sync.Mutex
	genuine map[string]binary // guarded by mu, by path
}

// New returns the Plugins of a node, which run programs by exec.
func New(exec invoke.Exec, m *Masquerade) *Plugins {
	return &Plugins{Exec: exec, masquerade: m, genuine: map[string]binary{}}
}

// plugin is one standard plugin.
type plugin struct {
	// main is the path of its main package below those of containernetworking.
	main string
	// knows reports whether all keys and values of a configuration are known here.
	knows func(config []byte) bool
	// idle reports whether the plugin has nothing to do for a pod but to pass a result on.
	idle func(config []byte) bool
	add  func(*Plugins, context.Context, call) (types.Result, error)
	// take takes the addresses off a pod's interface.
	take func(ifName string) error
}

var standard = map[string]plugin{
	"bridge":     {main: "main/bridge", knows: knows[bridgeConf], add: (*Plugins).addBridge, take: removeAddresses},
	"ptp":        {main: "main/ptp", knows: knows[ptpConf], add: (*Plugins).addPTP, take: ip.DelLinkByName},
	"host-local": {main: "ipam/host-local"},
	"portmap":    {main: "meta/portmap", knows: knows[portmapConf], idle: lacks("portMappings")},
	"bandwidth":  {main: "meta/bandwidth", knows: knows[bandwidthConf], idle: lacks("bandwidth")},
}

// call is one call of a plugin.
type call struct {
	command, containerID, netns, ifName, args string
	config                                    []byte
}

func (c call) owner() string { return Owner(c.containerID, c.ifName) }

// Owner is the owner of the masquerading of a sandbox's interface.
func Owner(sandbox, ifName string) string { return sandbox + "/" + ifName }

// ExecPlugin returns what the plugin at path prints.
func (p *Plugins) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	c := call{config: stdin}
	for _, entry := range environ { // libcni appends its own to those of the daemon
		name, value, _ := strings.Cut(entry, "=")
		switch name {
		case "CNI_COMMAND":
			c.command = value
		case "CNI_CONTAINERID":
			c.containerID = value
		case "CNI_NETNS":
			c.netns = value
		case "CNI_IFNAME":
			c.ifName = value
		case "CNI_ARGS":
			c.args = value
		}
	}
	does := standard[filepath.Base(path)]
	idle := does.idle != nil && does.idle(stdin)
	if !idle && does.add == nil || c.command != "ADD" && c.command != "DEL" {
		return p.Exec.ExecPlugin(ctx, path, stdin, environ)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err := guarded(func() error {
		var r types.Result
		var err error
		switch {
		case c.command == "ADD" && idle:
			r, err = pass(c)
		case c.command == "ADD":
			r, err = does.add(p, ctx, c)
		case !idle:
			err = p.disconnect(ctx, c, does.take)
		}
		if err == nil && r != nil {
			err = r.PrintTo(&out)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("CNI plugin %s (in process): %w", filepath.Base(path), err)
	}
	return out.Bytes(), nil
}

// guarded returns a panic of f as an error: a plugin that panics fails one call, too.
func guarded(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// pass returns the result of the plugin before this one.
func pass(c call) (types.Result, error) {
	var conf types.PluginConf
	if err := json.Unmarshal(c.config, &conf); err != nil {
		return nil, err
	}
	if err := version.ParsePrevResult(&conf); err != nil {
		return nil, err
	}
	if conf.PrevResult == nil {
		return nil, fmt.Errorf("the network's configuration lists no plugin before it")
	}
	return conf.PrevResult.GetAsVersion(conf.CNIVersion)
}

// binary is a plugin's file, as far as its identity was checked.
type binary struct {
	size    int64
	changed time.Time
	genuine bool
}

// Serves reports whether all plugins of a network are standard ones that this package replaces.
// find returns the path of a plugin's binary.
func (p *Plugins) Serves(list *libcni.NetworkConfigList, find func(plugin string) (string, error)) bool {
	for _, conf := range list.Plugins {
		does, known := standard[conf.Network.Type]
		if !known || does.knows == nil || !does.knows(conf.Bytes) {
			return false
		}
		var has layer3
		if json.Unmarshal(conf.Bytes, &has) != nil || has.IPMasq && !p.masquerade.Usable() {
			return false
		}
		for _, name := range []string{conf.Network.Type, conf.Network.IPAM.Type} {
			if name == "" {
				continue
			}
			path, err := find(name)
			if err != nil || !p.isGenuine(path, standard[name].main) {
				return false
			}
		}
	}
	return len(list.Plugins) > 0
}

// isGenuine reports whether a program was built from containernetworking's main package. It reads
// a file again only if it changed.
func (p *Plugins) isGenuine(path, main string) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, checked := p.genuine[path]
	if !checked || b.size != info.Size() || !b.changed.Equal(info.ModTime()) {
		built, err := buildinfo.ReadFile(path)
		b = binary{info.Size(), info.ModTime(), err == nil && built.Path == "github.com/containernetworking/plugins/plugins/"+main}
		p.genuine[path] = b
	}
	return b.genuine
}
