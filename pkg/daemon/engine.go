package daemon

import (
	"context"
	"path/filepath"

	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/engine"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/engine/network"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/engine/streaming"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/router"
)

// maxSessions bounds the concurrent exec sessions, and the concurrent attach sessions.
const maxSessions = 512

var _ router.Preflighter = (*engine.Engine)(nil)

// engineAsking returns the function that opens the real engine, which probes runtimes through
// prober.
func engineAsking(
	prober *probe.Prober,
) func(context.Context, *config.Config, Build, *Handlers) (Engine, error) {
	return func(ctx context.Context, cfg *config.Config, b Build, h *Handlers) (Engine, error) {
		c := engineConfig(cfg, b)
		c.Prober, c.Definitions, c.Accepting, c.Configured = prober, h.Usable, h.Accepting, h.Configured
		c.Settings.CgroupPrefix = h.CgroupPrefix
		return engine.New(ctx, c)
	}
}

// engineConfig is the only place that derives the engine's configuration from the daemon's. Pure.
func engineConfig(cfg *config.Config, b Build) engine.Config {
	e := cfg.Engine
	return engine.Config{
		Root: e.Root, State: e.State,
		Supervisor: e.ShimPath, Pause: e.PausePath,
		Version: b.Version, Revision: b.Revision,
		RuntimeName: cfg.Server.RuntimeName,
		Settings: settings.Config{
			CgroupDriver:       string(e.CgroupDriver),
			Snapshotter:        e.Snapshotter,
			MaxLogLineSize:     e.MaxLogLineSize,
			UnprivilegedPorts:  e.UnprivilegedPorts,
			UnprivilegedICMP:   e.UnprivilegedICMP,
			IgnoreImageVolumes: e.IgnoreImageDefinedVolumes,
			DefaultSeccomp:     e.DefaultSeccompProfile,
		},
		CDISpecDirs: e.CDISpecDirs,
		Network:     networkConfig(cfg.CNI, e.Root),
		Plugins:     pluginConfig(cfg.NRI),
		Images:      imageConfig(cfg),
		Streaming: streaming.Config{
			Address: cfg.Streaming.Address, Port: cfg.Streaming.Port, IdleTimeout: cfg.Streaming.IdleTimeout,
			MaxSessions: maxSessions,
		},
	}
}

// networkConfig returns the network configuration of a daemon with records below root.
func networkConfig(c config.CNI, root string) network.Config {
	own := digest.FromString(root).Encoded()[:12]
	n := network.Config{
		InProcess: c.InProcess, MasqueradeTable: "berth_" + own,
		ConfDir: c.ConfDir, BinDirs: c.BinDirs, MaxConfNum: c.MaxConfNum, GC: c.GC,
		// All CNI users of a node share the usual directory, and berth disconnects the pods of
		// unknown entries in its cache. Its own directory, one for each root, keeps the pods of
		// other daemons and of a second berth connected.
		CacheDir: filepath.Join(c.CacheDir, "berth", own),
	}
	if n.MaxConfNum == 0 { // "all" in the configuration
		n.MaxConfNum = -1
	}
	return n
}

func pluginConfig(n config.NRI) nri.Config {
	return nri.Config{
		Disable: n.Disable, SocketPath: n.SocketPath,
		PluginPath: n.PluginPath, PluginConfigPath: n.PluginConfigPath,
		RegistrationTimeout: n.PluginRegistrationTimeout, RequestTimeout: n.PluginRequestTimeout,
	}
}

func imageConfig(cfg *config.Config) image.Config {
	i := image.Config{
		Root:                   filepath.Join(cfg.Engine.Root, "images"),
		WritableRoot:           cfg.Engine.WritableRoot,
		HostsDir:               cfg.Registry.HostsDir,
		DefaultSnapshotter:     cfg.Engine.Snapshotter,
		Snapshotters:           map[string]string{},
		MaxConcurrentDownloads: cfg.Registry.MaxConcurrentDownloads,
		PullProgressTimeout:    cfg.Registry.PullProgressTimeout,
		DiscardLayers:          cfg.Registry.DiscardUnpackedLayers,
		Limits:                 bounds.Limits{MaxUnpackMemory: int64(cfg.Registry.MaxUnpackMemory), MaxImageEntries: int64(cfg.Registry.MaxImageEntries)},
		MountOptions:           cfg.Engine.OverlayMountOptions,
		SyncRootfs:             cfg.Engine.SyncRootfs,
		PinnedImages:           cfg.Registry.PinnedImages,
		CheckpointImages:       cfg.Registry.CheckpointImages,
		DecryptionKeysDir:      cfg.Registry.DecryptionKeysPath,
		PreloadDir:             cfg.Registry.PreloadDir,
		Verifiers: pull.Verifiers{
			BinDir: cfg.ImageVerifier.BinDir, Timeout: cfg.ImageVerifier.PerVerifierTimeout,
		},
	}
	for name, s := range cfg.Snapshotters {
		i.Snapshotters[name] = s.Address
	}
	if i.PullProgressTimeout == 0 { // "never" in the configuration
		i.PullProgressTimeout = -1
	}
	return i
}
