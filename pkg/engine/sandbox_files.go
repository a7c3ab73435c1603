package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/pin"
)

// shmSize is the size of a pod's /dev/shm, as the peers have it.
const shmSize = 64 << 20

// sandboxFiles are the files of a sandbox that its containers mount.
type sandboxFiles struct{ hosts, hostname, resolvConf, shm string }

// makeFiles writes the sandbox's files and mounts its shared memory.
func (b *sandboxRuns) makeFiles(s *sandbox) error {
	f, plan := b.filesOf(s.ID()), s.Spec().Plan
	hostname := plan.Hostname
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	if err := os.WriteFile(f.hostname, []byte(hostname+"\n"), 0o644); err != nil {
		return fmt.Errorf("sandbox hostname: %w", err)
	}
	if err := copyHostFile("/etc/hosts", f.hosts); err != nil {
		return fmt.Errorf("sandbox hosts: %w", err)
	}
	if err := writeResolvConf(s.config().GetDnsConfig(), f.resolvConf); err != nil {
		return fmt.Errorf("sandbox resolv.conf: %w", err)
	}
	for _, file := range []string{f.hostname, f.hosts, f.resolvConf} {
		if err := plan.chown(file); err != nil {
			return fmt.Errorf("sandbox files: %w", err)
		}
	}
	if !plan.IPC {
		return nil
	}
	if err := mountShm(f.shm, plan.User); err != nil {
		return fmt.Errorf("sandbox shm: %w", err)
	}
	return nil
}

func mountShm(dir string, u *pin.User) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	options := fmt.Sprintf("mode=1777,size=%d", shmSize)
	if u != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", u.UIDs.HostID, u.GIDs.HostID)
	}
	return unix.Mount("shm", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options)
}

// removeFiles takes back makeFiles, whether it ended or not.
func removeFiles(l layout, id string) error {
	// What is still mounted belongs to all sandboxes: it must not be walked into.
	for _, m := range []string{l.filesOf(id).shm, filepath.Join(l.processBundle(id), "rootfs")} {
		if err := mountpoint.Unmount(m); err != nil {
			return err
		}
	}
	return removeDir(l.sandboxDir(id))
}

func copyHostFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// writeResolvConf writes the pod's DNS configuration; without one the pod has
// the node's.
func writeResolvConf(c *runtimeapi.DNSConfig, to string) error {
	if c == nil {
		return copyHostFile("/etc/resolv.conf", to)
	}
	return os.WriteFile(to, []byte(resolvConf(c)), 0o644)
}

func resolvConf(c *runtimeapi.DNSConfig) string {
	var b strings.Builder
	if len(c.GetSearches()) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(c.GetSearches(), " "))
	}
	for _, s := range c.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(c.GetOptions()) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(c.GetOptions(), " "))
	}
	return b.String()
}
