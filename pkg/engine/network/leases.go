package network

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
)

// hostLocalDir is where host-local keeps leases, one file for each address below a
// directory for each network, unless its configuration says otherwise.
// https://www.cni.dev/plugins/current/ipam/host-local/
const hostLocalDir = "/var/lib/cni/networks"

// releaseBlankLeases gives addresses back whose leases a power cut has emptied:
// host-local does not flush what it writes, and by an empty file its DEL cannot
// tell whose the address was. Only leases from before this boot are looked at. No
// process has lived through that, so whoever they were for is gone.
func (l *Leftovers) releaseBlankLeases(ctx context.Context) error {
	booted, err := bootTime()
	if err != nil {
		return err
	}
	lists, err := l.networks(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for name, list := range lists {
		for _, dir := range leaseDirs(list) {
			released, err := releaseBlank(ctx, dir, booted)
			if len(released) > 0 {
				log.G(ctx).WithFields(log.Fields{"network": name, "addresses": released}).
					Info("Released addresses whose leases were lost in a power cut")
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("network %q: %w", name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// bootTime is when the kernel started, by today's clock.
func bootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("read the time since boot: %w", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// leaseDirs are the directories in which plugins of a network keep leases of
// host-local.
func leaseDirs(list *libcni.NetworkConfigList) []string {
	var dirs []string
	for _, plugin := range list.Plugins {
		var conf struct {
			IPAM struct {
				Type    string `json:"type"`
				DataDir string `json:"dataDir"`
			} `json:"ipam"`
		}
		if json.Unmarshal(plugin.Bytes, &conf) == nil && conf.IPAM.Type == "host-local" {
			dirs = append(dirs, filepath.Join(cmp.Or(conf.IPAM.DataDir, hostLocalDir), list.Name))
		}
	}
	return dirs
}

// releaseBlank removes the leases in dir that say nothing and are older than since,
// and returns their addresses. It holds the lock that host-local takes.
func releaseBlank(ctx context.Context, dir string, since time.Time) (released []string, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer lock.Close() // which unlocks it
	if err := takeLock(ctx, lock); err != nil {
		return nil, fmt.Errorf("lock the leases in %s: %w", dir, err)
	}
	var errs []error
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err != nil || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(dir, e.Name())
		blank, err := isBlank(path, since)
		if err == nil && blank {
			if err = os.Remove(path); err == nil {
				released = append(released, e.Name())
			}
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return released, errors.Join(errs...)
}

// maxLease is longer than a lease: an id, a line break and an interface's name.
const maxLease = 4096

// isBlank says whether a lease from before a time says nothing: what was not
// flushed is missing, or reads as zeros.
func isBlank(path string, since time.Time) (bool, error) {
	info, err := os.Lstat(path)
	if err != nil || !info.ModTime().Before(since) || info.Size() > maxLease {
		return false, err
	}
	content, err := os.ReadFile(path)
	return err == nil && len(bytes.Trim(content, "\x00\r\n ")) == 0, err
}

// lockPatience is how long a lock is waited for that a plugin holds, and lockPoll
// how often it is tried.
const (
	lockPatience = 5 * time.Second
	lockPoll     = 10 * time.Millisecond
)

func takeLock(ctx context.Context, file *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(lockPoll):
		}
	}
}
