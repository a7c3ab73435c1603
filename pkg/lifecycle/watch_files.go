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
	// quiet is how long files must stay unchanged before they are read, so that an editor can
	// finish several writes.
	quiet = 100 * time.Millisecond
	// longest is how long a stream of changes can delay a read.
	longest = time.Second
)

// pollInterval is the polling interval for files without kernel events.
const pollInterval = 2 * time.Second

func (r *reloader) watchFiles() {
	f := &files{
		paths: r.loader.Paths, again: r.rewatch, polls: &r.polls, interval: pollInterval, log: log.G(r.life),
		changed: r.filesChanged,
		// Polling may find a change that an event already reported.
		differs: func() { r.request(request{trigger: TriggerFiles, patient: true, silent: true}) },
	}
	var err error
	if f.watcher, err = fsnotify.NewWatcher(); err != nil {
		f.watcher = &fsnotify.Watcher{} // never sends an event
		f.unwatched(err)
	}
	f.add()
	f.look()
	// Files may have changed since the configuration was read.
	r.request(request{trigger: TriggerFiles, patient: true, silent: true})
	r.work.Go(func() { f.run(r.life) })
	r.work.Go(func() { f.poll(r.life) })
}

func (r *reloader) filesChanged() { r.request(request{trigger: TriggerFiles, patient: true}) }

type files struct {
	watcher *fsnotify.Watcher
	paths   func() []string
	// changed is called after events, and differs after a poll found a change.
	changed, differs func()
	// again signals that the paths may have changed.
	again <-chan struct{}
	log   *log.Entry

	// polls is set while the kernel does not report all changes.
	polls    *atomic.Bool
	interval time.Duration
	// fresh is set when there may be new symbolic links.
	fresh atomic.Bool
	// print and links are the results of the last look.
	print string
	links bool
}

// unwatched falls back to polling, and logs that once.
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
	var first time.Time // of the changes that are not reported yet
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
			// Events were lost, so the changes are unknown.
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

// look reads the files and reports whether they have changed since its last call.
func (f *files) look() (others bool) {
	before := f.print
	f.print, f.links = hostfiles.Fingerprint(f.paths())
	return f.print != before
}

// poll compares the files if the kernel does not report all changes, or if one of the files or
// directory entries is a symbolic link: a change of its target may send no event. watchFiles
// looks once before poll starts, so poll finds later changes.
func (f *files) poll(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, f.interval, false, func(context.Context) (bool, error) {
		if (f.fresh.Swap(false) || f.links || f.polls.Load()) && f.look() {
			f.differs()
		}
		return false, nil
	})
}

// add watches the directories that exist now. For a missing directory it watches the nearest
// existing one above it.
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

// watched returns the directories to watch for changes of paths: each path that is a directory, and
// the nearest existing directory above each path. It has no side effects, except those of exists.
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

// relevant reports whether an event can change the content of paths: it is about one of them, a
// directory above one, or a file in one of them that berth could read. Events of names that begin
// with two dots are relevant inside and beside each of paths: Kubernetes uses such names to swap a
// directory's content. Pure.
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
			// Other daemons read files of any name; temporary files of editors begin with a dot.
			if strings.HasPrefix(base, "..") || !strings.HasPrefix(base, ".") {
				return true
			}
		case filepath.Dir(e.Name) == filepath.Dir(p) && strings.HasPrefix(base, ".."):
			return true
		}
	}
	return false
}
