// Package hostfiles checks the files and directories that a configuration names: their content,
// whether they are usable, and which users can change them. It waits a bounded time for each, since
// an unreachable network file system never answers.
package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// patience bounds the wait for a check of one file.
const patience = 3 * time.Second

// looks are the running checks of files. On an unreachable network file system a check never ends,
// and all its callers wait for one goroutine. Unlike with singleflight.Group, a caller that gives
// up leaves nothing behind.
var looks sync.Map // of *look, by question and file

type look struct {
	answer any
	// done is closed once answer is written.
	done chan struct{}
}

// Look returns the result of f, a check of a file; late is set if f takes longer than patience.
// Callers with the same question and file share one call of f.
func Look[T any](question, file string, f func() T) (answer T, late bool) {
	return wait(patience, question, file, f)
}

// Hangs is the mistake of a file that does not answer in time.
const Hangs = "stat timed out: is it on an unreachable network file system, or a link into one? Remount it, or remove the entry"

// Looker checks many files with one bound for all.
type Looker struct{ spent time.Duration }

const (
	// patienceOfMany bounds a Looker's total wait.
	patienceOfMany = 2 * patience
	// hurried bounds each further wait after that.
	hurried = 50 * time.Millisecond
)

// Ask is Look within the remaining time of l.
func Ask[T any](l *Looker, question, file string, f func() T) (answer T, late bool) {
	begin := time.Now()
	answer, late = wait(max(min(patienceOfMany-l.spent, patience), hurried), question, file, f)
	if late {
		l.spent += time.Since(begin)
	}
	return answer, late
}

// stuck are files that did not answer in time. Until one answers, further calls for it wait only
// briefly.
var stuck sync.Map

func wait[T any](patience time.Duration, question, file string, f func() T) (answer T, late bool) {
	if _, known := stuck.Load(file); known {
		patience = min(patience, hurried)
	}
	key := question + "\x00" + file
	known, underWay := looks.LoadOrStore(key, &look{done: make(chan struct{})})
	l := known.(*look)
	if !underWay {
		go func() {
			l.answer = f()
			stuck.Delete(file)
			looks.Delete(key)
			close(l.done)
		}()
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-l.done:
		answer, _ = l.answer.(T)
		return answer, false
	case <-t.C:
		stuck.Store(file, nil)
		return answer, true
	}
}

// Mistake is Look for a check f that returns a mistake, or "".
func Mistake(question, file string, f func(string) string) string {
	m, late := Look(question, file, func() string { return f(file) })
	if late {
		return fmt.Sprintf("stat %s timed out: is it on an unreachable network file system? Remount it, or correct the path", file)
	}
	return m
}

// IsDir reports whether path is a directory; false if its file system does not answer in time.
func IsDir(path string) bool {
	is, _ := Look("directory", path, func() bool {
		info, err := os.Stat(path)
		return err == nil && info.IsDir()
	})
	return is
}

// SearchPathEnv is the environment variable that replaces SearchDirs, as a colon-separated list.
const SearchPathEnv = "BERTH_SEARCH_PATH"

// SearchDirs returns the directories in which runtimes are discovered, in falling precedence: the
// administrator's, the distribution's, then /opt/*/bin. It ignores PATH: a shell, the service and
// every command must find the same handlers.
func SearchDirs() []string {
	if env := os.Getenv(SearchPathEnv); env != "" {
		return filepath.SplitList(env)
	}
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}
	opt, _ := filepath.Glob("/opt/*/bin")
	return append(dirs, opt...)
}
