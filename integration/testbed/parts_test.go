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
	if err := awaitBuild(dir); err != nil {
		t.Fatalf("nobody ever built there: %v", err)
	}
	lock, err := os.Create(filepath.Join(dir, ".kubernetes.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := awaitBuild(dir); err != nil {
		t.Fatalf("a build is over: %v", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- awaitBuild(dir) }()
	select {
	case err := <-waited:
		t.Fatalf("a build that goes on was not waited for: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-waited:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		t.Fatal("a build that is over is waited for")
	}
}
