// Package standard does the work of containernetworking's standard CNI plugins in this process, so
// that a pod does not wait for the start of programs.
//
// A network is served here only if the node's binaries are containernetworking's, or flannel's, and
// all keys of its configuration are known; see Plugins.Serves. The result, the interfaces with their
// addresses, routes and sysctls, and the files of host-local and flannel are then those of the
// plugins, versions 1.10 and 1.9.
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
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Plugins is the invoke.Exec for networks that Serves accepts: it does ADD and DEL of standard
// plugins itself, and runs the program for everything else. All methods may be called concurrently.
type Plugins struct {
	invoke.Exec
	masquerade *Masquerade

	bridges sync.Mutex // held while a bridge is created and configured

	mu       sync.Mutex
	binaries map[string]binary // guarded by mu, by path
}

// New returns the Plugins of a node, which run programs by exec.
func New(exec invoke.Exec, m *Masquerade) *Plugins {
	return &Plugins{Exec: exec, masquerade: m, binaries: map[string]binary{}}
}

// plugin is one standard plugin.
type plugin struct {
	// mains are the main packages from which it is built.
	mains []string
	// knows reports whether all keys and values of a configuration are known here.
	knows func(config []byte) bool
	// idle reports whether the plugin has nothing to do for a pod but to pass a result on.
	idle func(config []byte) bool
	add  func(*Plugins, context.Context, call) (types.Result, error)
	del  func(*Plugins, context.Context, call) error
	// delegate returns the configuration of the bridge plugin, which this plugin runs.
	delegate func(config []byte) ([]byte, error)
}

var standard = map[string]plugin{
	"bridge":     {mains: mains("main/bridge"), knows: knows[bridgeConf], add: (*Plugins).addBridge, del: (*Plugins).delBridge},
	"ptp":        {mains: mains("main/ptp"), knows: knows[ptpConf], add: (*Plugins).addPTP, del: (*Plugins).delPTP},
	"loopback":   {mains: mains("main/loopback"), knows: knows[loopbackConf], add: (*Plugins).addLoopback, del: (*Plugins).delLoopback},
	"host-local": {mains: mains("ipam/host-local")},
	"portmap":    {mains: mains("meta/portmap"), knows: knows[portmapConf], idle: lacks("portMappings")},
	"bandwidth":  {mains: mains("meta/bandwidth"), knows: knows[bandwidthConf], idle: lacks("bandwidth")},
	"flannel": {
		mains: append(mains("meta/flannel"), "github.com/flannel-io/cni-plugin"), knows: knows[flannelConf],
		add: (*Plugins).addFlannel, del: (*Plugins).delFlannel, delegate: delegate,
	},
}

// mains returns the main packages of a plugin of containernetworking: its own, and that of the
// program which k3s builds from all of them.
func mains(path string) []string {
	const project = "github.com/containernetworking/plugins"
	return []string{project + "/plugins/" + path, project}
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
			err = does.del(p, ctx, c)
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
	main    string // empty if no Go program
}

// Serves reports whether all plugins of a network are standard ones that this package replaces.
// find returns the path of a plugin's binary.
func (p *Plugins) Serves(list *libcni.NetworkConfigList, find func(plugin string) (string, error)) bool {
	for _, conf := range list.Plugins {
		if !p.serves(conf.Network.Type, conf.Bytes, find) {
			return false
		}
	}
	return len(list.Plugins) > 0
}

func (p *Plugins) serves(kind string, config []byte, find func(string) (string, error)) bool {
	does := standard[kind]
	if does.knows == nil || !does.knows(config) || !p.isGenuine(kind, find) {
		return false
	}
	if does.delegate != nil {
		config, err := does.delegate(config)
		return err == nil && p.serves("bridge", config, find)
	}
	var has layer3
	if json.Unmarshal(config, &has) != nil || has.IPMasq && !p.masquerade.Usable() {
		return false
	}
	return has.IPAM == nil || p.isGenuine(has.IPAM.Type, find)
}

// isGenuine reports whether a program was built from a main package of the plugin. It reads a file
// again only if it changed.
func (p *Plugins) isGenuine(kind string, find func(string) (string, error)) bool {
	path, err := find(kind)
	if err != nil {
		return false
	}
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, checked := p.binaries[path]
	if !checked || b.size != info.Size() || !b.changed.Equal(info.ModTime()) {
		b = binary{size: info.Size(), changed: info.ModTime()}
		if built, err := buildinfo.ReadFile(path); err == nil {
			b.main = built.Path
		}
		p.binaries[path] = b
	}
	return slices.Contains(standard[kind].mains, b.main)
}
