// Package thread runs functions on separate operating system threads.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Run runs f on an operating system thread that exits afterwards, so that no other goroutine ever
// runs in namespaces that f entered.
//
// The Go runtime cannot end the main thread: it would park the thread forever in the namespaces
// that f entered, and /proc/self/ns would show them. A goroutine that gets the main thread
// therefore keeps it while another goroutine, on another thread, does the work.
func Run(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked, so that the thread exits with the goroutine
		if unix.Gettid() == unix.Getpid() {
			err := Run(f)
			runtime.UnlockOSThread()
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
