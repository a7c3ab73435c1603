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

// Prefixes of the entries in the tools' directory; a hash follows.
const (
	shimPrefix      = "berth-shim-"
	pausePrefix     = "berth-pause-"
	pauseRootPrefix = "pause-"
	// newPrefix is for unfinished copies, oldPrefix for entries that are being removed.
	newPrefix = keep.PartialPrefix
	oldPrefix = ".old-"
)

type toolUse struct {
	shims, pauseRoots, runtimes map[string]bool
	// allShims and allRuntimes are set if it is unknown which are in use.
	allShims, allRuntimes bool
}

// unused returns the names in the tools' directory that nothing uses. Unknown names stay.
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

// collector removes kept programs that are no longer used.
type collector struct {
	pods       *pod.Registry
	log        *log.Entry
	tools      tools
	binaries   *copies
	unreadable bool // the records of some pods cannot be read
	configured func() []*handler.Definition
	mu         sync.Mutex // held during a collection
}

// inUse finds the programs in use. New pods use only the current tools, so an unused program stays
// unused. Runtimes are read before the records: a pod's binaries are held until its record names
// them (copies.ForPod), so they are in one of the two.
func (c *collector) inUse() (toolUse, error) {
	u := toolUse{
		shims:      map[string]bool{filepath.Base(c.tools.Supervisor): true, shimPrefix + c.tools.SupervisorHash[:16]: true},
		pauseRoots: map[string]bool{filepath.Base(c.tools.PauseRoot): true},
		runtimes:   c.binaries.needed(c.configured()),
		// All count as used while the binaries of new pods, or the records of some pods, are
		// unknown.
		allRuntimes: !c.binaries.warmedUp.Load() || c.unreadable,
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

// Collect removes unused kept programs. A directory is renamed first, so a daemon that is killed
// meanwhile leaves no directory that looks complete. Collect does nothing once the engine is
// closed: another engine in this process may keep other programs.
func (c *collector) Collect() {
	if c.pods.Background.Err() != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.binaries.tryExclusive(c.try); err != nil {
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
	use, err := c.inUse()
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
