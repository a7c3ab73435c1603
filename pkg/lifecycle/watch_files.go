package lifecycle

import (
	"context"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/log"
	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

const (
	// quiet is how long files must not change before they are read: whoever writes
	// several, or one in several steps, is given time to finish.
	quiet = 100 * time.Millisecond
	// longest is how long a stream of changes can put a reading off.
	longest = time.Second
)

// pollInterval is how often files are looked at whose changes the kernel does not
// tell.
const pollInterval = 2 * time.Second

func (r *reloader) watchFiles() {
	f := &files{
		paths: r.loader.Paths, again: r.rewatch, polls: &r.polls, interval: pollInterval, log: log.G(r.life),
		changed: r.filesChanged,
		// It may be what was told already.
		differs: func() { r.request(request{trigger: TriggerFiles, patient: true, silent: true}) },
	}
	var err error
	if f.watcher, err = fsnotify.NewWatcher(); err != nil {
		f.watcher = &fsnotify.Watcher{} // which tells nothing
		f.unwatched(err)
	}
	f.add()
	f.look()
	// What changed between the reading of the configuration and this moment.
	r.request(request{trigger: TriggerFiles, patient: true, silent: true})
	r.work.Go(func() { f.run(r.life) })
	r.work.Go(func() { f.poll(r.life) })
}

func (r *reloader) filesChanged() { r.request(request{trigger: TriggerFiles, patient: true}) }

type files struct {
	watcher *fsnotify.Watcher
	paths   func() []string
	// changed is called after what the kernel told, and differs after what a look found.
	changed, differs func()
	// again says that the paths may be others now.
	again <-chan struct{}
	log   *log.Entry

	// polls says that the kernel does not tell all changes.
	polls    *atomic.Bool
	interval time.Duration
	// fresh says that there may be links which were not there before.
	fresh atomic.Bool
	// print and links are what the last look found.
	print string
	links bool
}

// unwatched has files looked at every few seconds, and says so once.
func (f *files) unwatched(err error) {
	if f.polls.Swap(true) {
		return
	}
	f.log.WithError(err).WithField("interval", f.interval.String()).
		Warn("Failed to watch configuration files; polling them instead. Raise fs.inotify.max_user_watches or max_user_instances, then restart berth")
}

// run waits for changes, and for quiet after them, until ctx ends.
func (f *files) run(ctx context.Context) {
	defer f.close()
	var first time.Time // of the changes that are not told yet
	timer := time.NewTimer(0)
	<-timer.C
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.again:
			f.add()
			f.fresh.Store(true)
			continue
		case <-timer.C:
			first = time.Time{}
			f.add()
			f.fresh.Store(true)
			f.changed()
			continue
		case err := <-f.watcher.Errors:
			// Events were lost: what happened is not known.
			f.log.WithError(err).Warn("Lost change events of configuration files; reading all files again")
		case e := <-f.watcher.Events:
			if !relevant(e, f.paths()) {
				continue
			}
		}
		if first.IsZero() {
			first = time.Now()
		}
		timer.Reset(max(0, min(quiet, longest-time.Since(first))))
	}
}

func (f *files) close() {
	if f.watcher.Events == nil {
		return
	}
	if err := f.watcher.Close(); err != nil {
		f.log.WithError(err).Warn("Failed to close the watch on configuration files")
	}
}

// look says whether the files are others than at the last look.
func (f *files) look() (others bool) {
	before := f.print
	f.print, f.links = hostfiles.Fingerprint(f.paths())
	return f.print != before
}

// poll looks at the files where the kernel does not tell, or where a link leads to
// one: what is behind it may change without a word. The first look was made before,
// so that what changes from then on is seen.
func (f *files) poll(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, f.interval, false, func(context.Context) (bool, error) {
		if (f.fresh.Swap(false) || f.links || f.polls.Load()) && f.look() {
			f.differs()
		}
		return false, nil
	})
}

// add watches what can be watched now. A directory that does not exist yet is
// awaited in the nearest one that does.
func (f *files) add() {
	if f.watcher.Events == nil {
		return
	}
	all := true
	for _, dir := range watched(f.paths(), hostfiles.IsDir) {
		if err := f.watcher.Add(dir); err != nil && hostfiles.IsDir(dir) {
			f.unwatched(err)
			all = false
		}
	}
	if all && f.polls.Swap(false) {
		f.log.Info("Resumed watching configuration files")
	}
}

// watched are the directories to watch for changes of paths: each of them that
// is a directory, and the nearest directory above it. Pure but for exists.
func watched(paths []string, exists func(string) bool) []string {
	var dirs []string
	seen := map[string]bool{}
	add := func(dir string) {
		if !seen[dir] {
			seen[dir] = true
			dirs = append(dirs, dir)
		}
	}
	for _, p := range paths {
		if exists(p) {
			add(p)
		}
		above := filepath.Dir(p)
		for !exists(above) && above != filepath.Dir(above) {
			above = filepath.Dir(above)
		}
		add(above)
	}
	return dirs
}

// relevant says whether an event can change what is read from paths: it is about
// one of them, about a directory above one, or about a file that counts in one.
// Names that begin with two dots are how Kubernetes swaps the content of a
// directory. Pure.
func relevant(e fsnotify.Event, paths []string) bool {
	if e.Op == fsnotify.Chmod {
		return false
	}
	base := filepath.Base(e.Name)
	for _, p := range paths {
		switch {
		case e.Name == p, strings.HasPrefix(p, e.Name+"/"):
			return true
		case filepath.Dir(e.Name) == filepath.Clean(p):
			// Other daemons read files of any name, editors' temporary ones begin with a dot.
			if strings.HasPrefix(base, "..") || !strings.HasPrefix(base, ".") {
				return true
			}
		case filepath.Dir(e.Name) == filepath.Dir(p) && strings.HasPrefix(base, ".."):
			return true
		}
	}
	return false
}
