package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lease writes one as host-local does, as old as it is said to be.
func lease(t *testing.T, dir, address, content string, changed time.Time) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, address)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, changed, changed); err != nil {
		t.Fatal(err)
	}
}

func leased(t *testing.T, dir, address string) bool {
	t.Helper()
	_, err := os.Lstat(filepath.Join(dir, address))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// TestBlankLeasesAreReleased: what a power cut leaves of host-local's leases holds
// addresses that no DEL would give back.
func TestBlankLeasesAreReleased(t *testing.T) {
	n := newNode(t)
	data := t.TempDir()
	n.configure("10-leased.conflist", fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "leased", "plugins": [
		{"type": "first"}, {"type": "second", "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.9.0.0/24"}]]}}]}`, data))
	n.spy("first", "")
	n.spy("second", "")
	dir := filepath.Join(data, "leased")
	before, now := time.Unix(1, 0), time.Now()
	lease(t, dir, "10.9.0.2", "", before)
	lease(t, dir, "10.9.0.3", "\x00\x00\x00\x00", before)
	lease(t, dir, "fd00::2", "\r\n", before)
	lease(t, dir, "10.9.0.4", "somebody\r\neth0", before)
	lease(t, dir, "10.9.0.5", "", now) // being written by another daemon's plugin
	lease(t, dir, "last_reserved_ip.0", "", before)
	lease(t, filepath.Join(data, "other"), "10.9.0.2", "", before)
	if err := collect(t, New(n.config)); err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{
		"10.9.0.2": false, "10.9.0.3": false, "fd00::2": false, "10.9.0.4": true, "10.9.0.5": true, "last_reserved_ip.0": true,
	} {
		if got := leased(t, dir, address); got != want {
			t.Errorf("%s is held: %v, want %v", address, got, want)
		}
	}
	if !leased(t, filepath.Join(data, "other"), "10.9.0.2") {
		t.Error("a network that is none of berth's was changed")
	}
}

// A plugin at work holds the lock: what it is about to write is not blank.
func TestLeasesAreLookedAtUnderTheirLock(t *testing.T) {
	dir := t.TempDir()
	lease(t, dir, "10.9.0.2", "", time.Unix(1, 0))
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	impatient, cancel := context.WithTimeout(t.Context(), 10*lockPoll)
	defer cancel()
	if _, err := releaseBlank(impatient, dir, time.Now()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("under the lock of a plugin: %v", err)
	}
	lease(t, dir, "10.9.0.2", "mine\r\neth0", time.Unix(1, 0))
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if _, err := releaseBlank(t.Context(), dir, time.Now()); err != nil {
		t.Fatal(err)
	}
	if !leased(t, dir, "10.9.0.2") {
		t.Error("a lease was removed that was written meanwhile")
	}
}

func TestBootTime(t *testing.T) {
	booted, err := bootTime()
	if err != nil || !booted.Before(time.Now()) || time.Since(booted) > 100*365*24*time.Hour {
		t.Errorf("%v, %v", booted, err)
	}
}
