package testbed

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestPartsOfKubernetesAreWaitedForWhileTheyAreBuilt(t *testing.T) {
	dir := t.TempDir()
	Mustf(t, awaitBuild(dir), "nobody ever built there")
	lock, err := os.Create(filepath.Join(dir, ".kubernetes.lock"))
	Must(t, err)
	defer lock.Close()
	Mustf(t, awaitBuild(dir), "a build is over")
	Must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	waited := make(chan error, 1)
	go func() { waited <- awaitBuild(dir) }()
	select {
	case err := <-waited:
		t.Fatalf("a build that goes on was not waited for: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	Must(t, unix.Flock(int(lock.Fd()), unix.LOCK_UN))
	select {
	case err := <-waited:
		Must(t, err)
	case <-time.After(time.Minute):
		t.Fatal("a build that is over is waited for")
	}
}
