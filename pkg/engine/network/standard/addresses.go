package standard

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/allocator"
	"github.com/containernetworking/plugins/plugins/ipam/host-local/backend/disk"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// files are the files of host-local while they are locked: the allocator must not lock them again.
type files struct{ *disk.Store }

func (files) Lock() error   { return nil }
func (files) Unlock() error { return nil }

// withFiles calls f with the files of host-local for a network. It waits for the lock of another
// process until ctx ends.
func withFiles(ctx context.Context, network, dir string, f func(files) error) error {
	store, err := disk.New(network, dir)
	if err != nil {
		return err
	}
	defer func() { _ = store.Close() }()
	const defaultDir = "/var/lib/cni/networks"
	lock, err := os.OpenFile(filepath.Join(cmp.Or(dir, defaultDir), network, "lock"), os.O_RDONLY|os.O_CREATE, 0o750)
	if err != nil {
		return err
	}
	defer lock.Close()
	for {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f(files{store})
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lock %s: %w", lock.Name(), context.Cause(ctx))
		case <-time.After(time.Millisecond):
		}
	}
}

// allocate reserves an address of each range set, as host-local does. If it fails, it releases those.
func (c call) allocate(ctx context.Context) (*types100.Result, error) {
	conf, _, err := allocator.LoadIPAMConfig(c.config, c.args)
	if err != nil {
		return nil, fmt.Errorf("host-local: %w", err)
	}
	r := &types100.Result{CNIVersion: types100.ImplementedSpecVersion, Routes: conf.Routes}
	err = withFiles(ctx, conf.Name, conf.DataDir, func(store files) error {
		for i := range conf.Ranges {
			given, err := allocator.NewIPAllocator(&conf.Ranges[i], store, i).Get(c.containerID, c.ifName, nil)
			if err != nil && i > 0 {
				err = errors.Join(err, store.ReleaseByID(c.containerID, c.ifName))
			}
			if err != nil {
				return fmt.Errorf("range set %d: %w", i, err)
			}
			r.IPs = append(r.IPs, given)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("host-local: %w", err)
	}
	failpoint.Hit(failpoint.SandboxAddressed)
	return r, nil
}

// release needs no ranges: those of flannel are missing until its daemon runs.
func (c call) release(ctx context.Context) error {
	var conf struct {
		Name string `json:"name"`
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	if err := json.Unmarshal(c.config, &conf); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	err := withFiles(ctx, conf.Name, conf.IPAM.DataDir, func(store files) error {
		return store.ReleaseByID(c.containerID, c.ifName)
	})
	if err != nil {
		return fmt.Errorf("host-local: %w", err)
	}
	return nil
}

func isV4(ip net.IP) bool { return ip.To4() != nil }
