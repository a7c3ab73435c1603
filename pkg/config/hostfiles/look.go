// Package hostfiles looks at the files and directories that a configuration names: what is
// in them, whether they can be used, and which users can change them. It waits a bounded time
// for each, since a network file system that is gone never answers.
package hostfiles

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// patience is how long a file that a configuration names may take to be looked at.
const patience = 3 * time.Second

// looks are the questions about files that have no answer yet. On a network file
// system that is gone they never get one, and all who ask wait for one goroutine. They
// leave nothing behind when they give up, as they would in a singleflight.Group.
var looks sync.Map // of *look, by question and file

type look struct {
	answer any
	// done is closed when answer is written.
	done chan struct{}
}

// Look asks about a file, but not for longer than patience. A question says what
// is asked of which file; those who ask the same share the answer.
func Look[T any](question, file string, f func() T) (answer T, late bool) {
	return wait(patience, question, file, f)
}

// Hangs is the mistake of a file that does not answer.
const Hangs = "stat timed out: is it on an unreachable network file system, or a link into one? Remount it, or remove the entry"

// Looker asks about many files, and is not patient with each of them.
type Looker struct{ spent time.Duration }

const (
	// patienceOfMany is how long a looker waits for answers in all,
	patienceOfMany = 2 * patience
	// hurried how long for one when that is over.
	hurried = 50 * time.Millisecond
)

// Ask is Look, in the time that l has left of its own.
func Ask[T any](l *Looker, question, file string, f func() T) (answer T, late bool) {
	begin := time.Now()
	answer, late = wait(max(min(patienceOfMany-l.spent, patience), hurried), question, file, f)
	if late {
		l.spent += time.Since(begin)
	}
	return answer, late
}

// stuck are files that did not answer in time. Until one does, no call waits long
// for it again.
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

// Mistake is Look for a question that is answered by what is wrong with the file.
func Mistake(question, file string, f func(string) string) string {
	m, late := Look(question, file, func() string { return f(file) })
	if late {
		return fmt.Sprintf("stat %s timed out: is it on an unreachable network file system? Remount it, or correct the path", file)
	}
	return m
}

// IsDir says whether there is a directory, as far as its file system answers.
func IsDir(path string) bool {
	is, _ := Look("directory", path, func() bool {
		info, err := os.Stat(path)
		return err == nil && info.IsDir()
	})
	return is
}

// SearchPathEnv is the environment variable that replaces SearchDirs, as a
// list separated by colons.
const SearchPathEnv = "BERTH_SEARCH_PATH"

// SearchDirs returns the directories in which runtimes are discovered, the
// first having precedence: what an administrator installed, then the
// distribution, then /opt/*/bin. PATH has no part in it: a shell, the service and every
// command must find the same handlers.
func SearchDirs() []string {
	if env := os.Getenv(SearchPathEnv); env != "" {
		return filepath.SplitList(env)
	}
	dirs := []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"}
	opt, _ := filepath.Glob("/opt/*/bin")
	return append(dirs, opt...)
}
