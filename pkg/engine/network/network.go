// Package network connects pods to the node's network by CNI plugins.
//
//	plugins := network.New(network.Config{ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}, CacheDir: dir})
//	p, err := network.PodFrom(id, config, "")  // "" is the node's ConfDir
//	p.NetNS = path                             // of the network namespace, once it exists
//	result, err := plugins.Setup(ctx, *p)      // CNI ADD; result goes into the sandbox's record
//	err = plugins.Teardown(ctx, *p, result)    // CNI DEL, then namespaces.Release
//
// A pod is disconnected with the configuration that connected it, even if the directory has
// changed. Setup records that configuration before the first plugin runs, so that an address is
// released even if the daemon is killed meanwhile.
//
// Plugins run only where necessary: one netlink message replaces the loopback plugin (package
// namespaces), and there is no CHECK after ADD.
package network

import (
	"cmp"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/semaphore"

	"github.com/berth-cri/berth/pkg/engine/network/standard"
)

// Config locates CNI's files on this node.
type Config struct {
	// ConfDir contains the node's network configurations (*.conflist, *.conf, *.json). They are
	// used in the order of their names.
	ConfDir string
	// BinDirs are searched for plugins, in order.
	BinDirs []string
	// MaxConfNum is how many configurations a pod gets: the first for eth0, the next for eth1 and
	// so on. 0 means 1, a negative number means all.
	MaxConfNum int
	// CacheDir keeps what Setup did until Teardown. It must last as long as the plugins' own
	// records (IPAM), even over reboots. Only this daemon may use it: a pod that has files here and
	// is not valid is a leftover.
	CacheDir string
	// InProcess serves networks of standard plugins in this process; see package standard.
	InProcess bool
	// MasqueradeTable is the name of this daemon's table of nftables.
	MasqueradeTable string
	// GC lets Collect send the verb GC. Plugins then remove all attachments that the verb does not
	// list, so the networks must not be used by any other daemon on the node.
	GC bool
}

// Plugins runs the node's CNI plugins. All methods may be called concurrently for different pods;
// calls for one pod must not overlap.
type Plugins struct {
	config Config
	cni    *libcni.CNIConfig
	// inProcess is used instead of cni for attachments with InProcess.
	inProcess  *libcni.CNIConfig
	standard   *standard.Plugins
	masquerade *standard.Masquerade
	unrepaired error // of the last checkNode
	journal    journal
	health     health
	// undoTimeout limits a DEL after a failed ADD, and each DEL by Collect.
	undoTimeout time.Duration

	mu sync.Mutex // guards the fields below
	// warned are the plugins that warn has checked.
	warned map[string]bool
	// active are the pods that this process has begun to connect and not yet disconnected. A value
	// of Leftovers does not contain them, because it was read earlier.
	active map[string]Pod

	pluginLock pluginLock
}

// New returns the plugins of a node. It reads nothing yet: the configuration is read when a pod or
// Status needs it.
func New(c Config) *Plugins {
	c.MaxConfNum = cmp.Or(c.MaxConfNum, 1)
	p := &Plugins{
		config:      c,
		journal:     journal(filepath.Join(c.CacheDir, "journal")),
		cni:         libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, &pluginExec{}),
		undoTimeout: 20 * time.Second,
		warned:      map[string]bool{},
		active:      map[string]Pod{},
		pluginLock:  pluginLock{semaphore.NewWeighted(exclusiveWeight)},
	}
	p.masquerade = standard.NewMasquerade(c.MasqueradeTable)
	p.standard = standard.New(&pluginExec{}, p.masquerade)
	p.inProcess = libcni.NewCNIConfigWithCacheDir(c.BinDirs, c.CacheDir, p.standard)
	p.health.check = p.checkNode
	p.health.ask = p.askNode
	return p
}

// Close removes what no pod needs from the node's firewall. Call it after all other methods.
func (p *Plugins) Close() error { return p.masquerade.Close() }
