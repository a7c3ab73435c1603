package config

import (
	"path/filepath"
	"time"
)

// PodCheckpoints is what the node keeps of checkpoints of pods.
type PodCheckpoints struct {
	// Directory has one directory for each; empty is in Engine.Root. See
	// PodCheckpointsDir of Config.
	Directory string `toml:"directory"`
	// Keep is how many of each pod are kept. 0 is no bound.
	Keep int `toml:"keep"`
	// MaxAge is from which age they are removed. 0 is never.
	MaxAge time.Duration `toml:"max_age"`
	// MaxTotalSize is how many bytes all of them may have. 0 is no bound.
	MaxTotalSize int `toml:"max_total_size"`
}

// PodCheckpointsDir is where checkpoints of pods are kept.
func (c *Config) PodCheckpointsDir() string {
	if c.PodCheckpoints.Directory != "" {
		return filepath.Clean(c.PodCheckpoints.Directory)
	}
	return filepath.Join(c.Engine.Root, "pod-checkpoints")
}

func (v *validator) podCheckpoints(p *PodCheckpoints) {
	if p.Directory != "" {
		v.absolute("pod_checkpoints.directory", p.Directory)
		if filepath.Clean(p.Directory) == "/" {
			v.wrong("pod_checkpoints.directory", "must be a directory of its own: checkpoints below it are removed", "")
		}
	}
	v.count("pod_checkpoints.keep", p.Keep)
	v.notNegative("pod_checkpoints.max_age", p.MaxAge)
	v.count("pod_checkpoints.max_total_size", p.MaxTotalSize)
}
