package binaries

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
)

// What is in the tools' directory, each followed by the beginning of a hash.
const (
	shimPrefix      = "berth-shim-"
	pausePrefix     = "berth-pause-"
	pauseRootPrefix = "pause-"
	// Halves: copies that did not come to their end, and removals.
	newPrefix = keep.HalfPrefix
	oldPrefix = ".old-"
)

type toolUse struct {
	shims, pauseRoots, runtimes map[string]bool
	// These are set when it is not known which.
	allShims, allRuntimes bool
}

// unused are those of the names in the tools' directory that nobody needs. What
// it does not know it leaves alone.
func (u toolUse) unused(names []string) []string {
	var out []string
	for _, name := range names {
		switch hash, isPause := strings.CutPrefix(name, pausePrefix); {
		case strings.HasPrefix(name, newPrefix), strings.HasPrefix(name, oldPrefix):
		case strings.HasPrefix(name, shimPrefix) && !u.allShims && !u.shims[name]:
		case isPause && !u.pauseRoots[pauseRootPrefix+hash]:
		case strings.HasPrefix(name, pauseRootPrefix) && !u.pauseRoots[name]:
		case strings.HasPrefix(name, keep.Prefix) && !u.allRuntimes && !u.runtimes[name]:
		default:
			continue
		}
		out = append(out, name)
	}
	return out
}

// collector removes what is kept for pods and no longer needed.
type collector struct {
	pods       *pod.Registry
	log        *log.Entry
	tools      tools
	binaries   *copies
	unreadable bool // there are pods whose records cannot be read
	configured func() []*handler.Definition
	mu         sync.Mutex // held while it collects
}

// use finds out who needs what. New pods take today's tools only, so what is
// not needed now never will be by this daemon. Runtimes are asked for first: a pod
// in the making that is not seen there has its record already, or takes today's.
func (c *collector) use() (toolUse, error) {
	u := toolUse{
		shims:      map[string]bool{filepath.Base(c.tools.Supervisor): true, shimPrefix + c.tools.SupervisorHash[:16]: true},
		pauseRoots: map[string]bool{filepath.Base(c.tools.PauseRoot): true},
		runtimes:   c.binaries.needed(c.configured()),
		// What new pods take is not known yet, or what a pod is of that cannot be read.
		allRuntimes: !c.binaries.takenUp.Load() || c.unreadable,
	}
	programs, err := shim.Programs(c.pods.State)
	if errdefs.IsFailedPrecondition(err) {
		u.allShims = true
	} else if err != nil {
		return u, err
	}
	for _, p := range programs {
		u.shims[filepath.Base(p)] = true
	}
	for _, o := range c.pods.Sandboxes.List() {
		s := o.Spec()
		maps.Copy(u.runtimes, dirs(s.Pinned.Binaries))
		if s.Plan.Process {
			u.pauseRoots[s.Pinned.PauseRoot] = true
		}
	}
	return u, nil
}

// Collect removes unused kept programs. A daemon that is killed over it leaves nothing
// that is taken for whole: a directory is renamed first. It does nothing once the engine is
// closed, whose successor in the same process may keep other programs.
func (c *collector) Collect() {
	if c.pods.Background.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.binaries.without(c.try); err != nil {
		c.log.WithError(err).Warn("Failed to remove unused kept binaries")
	}
}

func (c *collector) try() error {
	dir := c.tools.dir
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	use, err := c.use()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range use.unused(names) {
		path := filepath.Join(dir, name)
		if !strings.HasPrefix(name, oldPrefix) {
			path = filepath.Join(dir, oldPrefix+name)
			errs = append(errs, os.Rename(filepath.Join(dir, name), path))
		}
		errs = append(errs, os.RemoveAll(path))
		c.binaries.store.Forget(name)
		c.log.WithField("program", name).Debug("Removed unused kept binary")
	}
	return errors.Join(errs...)
}
