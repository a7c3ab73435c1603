// Package network connects pods to the node's network by CNI plugins.
//
//	plugins := network.New(network.Config{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}, CacheDir: dir})
//	pod, err := network.PodFrom(id, config, netns, "")
//	result, err := plugins.Setup(ctx, *pod)      // CNI ADD; result goes into the sandbox's record
//	err = plugins.Teardown(ctx, *pod, result)    // CNI DEL, then namespaces.Release
//
// A pod is always disconnected by the configuration that connected it, whatever
// the directory holds by then. Setup writes that configuration down before the
// first plugin runs, so that an address is found and given back also after the
// daemon was killed in the middle.
//
// What a plugin need not be asked is not asked: the loopback plugin is replaced
// by one netlink message (package namespaces), and there is no CHECK after ADD.
package network

import (
	"cmp"
	"context"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/semaphore"
)

// Config says where CNI's parts are on this node.
type Config struct {
	// ConfDir holds the node's network configurations (*.conflist, *.conf,
	// *.json). They are taken in the order of their names.
	ConfDir string
	// BinDirs are searched for plugins, in order.
	BinDirs []string
	// MaxConfNum is how many configurations a pod is connected to: the first is
	// eth0, the next eth1 and so on. 0 counts as 1, a negative number as all.
	MaxConfNum int
	// CacheDir keeps what Setup did until Teardown. It must survive what the
	// plugins' own records (IPAM) survive, so reboots too, and must belong to
	// this daemon alone: Leftovers are what is found here and was not told of.
	CacheDir string
	// GC lets Collect send the verb GC. It tells plugins that whatever it does not
	// name is gone, so nobody else on the node may use the networks.
	GC bool
}

// Plugins runs the node's CNI plugins. All methods may be called at the same
// time, for as many pods as there are; calls for one pod must not overlap.
type Plugins struct {
	config  Config
	cni     *libcni.CNIConfig
	journal journal
	health  health
	// undoTimeout bounds the DEL that follows a failed ADD, or collects a pod.
	undoTimeout time.Duration

	mu sync.Mutex // guards what follows
	// warned are the plugins that were looked at for their owners.
	warned map[string]bool
	// young are the pods that this process has begun to connect and not yet
	// disconnected: Leftovers knows a state that is older than they are.
	young map[string]Pod

	turns turns
}

// New returns the plugins of a node. It reads nothing yet: configuration is
// read whenever a pod or Status needs it.
func New(c Config) *Plugins {
	c.MaxConfNum = cmp.Or(c.MaxConfNum, 1)
	p := &Plugins{
		config:      c,
		journal:     journal(filepath.Join(c.CacheDir, "journal")),
		cni:         libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, &pluginExec{}),
		undoTimeout: 20 * time.Second,
		warned:      map[string]bool{},
		young:       map[string]Pod{},
		turns:       turns{semaphore.NewWeighted(allTurns)},
	}
	p.health.check = func(ctx context.Context) error { _, err := p.networks(ctx, ""); return err }
	p.health.ask = p.askNode
	return p
}
