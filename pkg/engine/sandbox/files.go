package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// shmSize is the size of a pod's /dev/shm, as in containerd and CRI-O.
const shmSize = 64 << 20

// makeFiles writes the sandbox's files and mounts its shared memory.
func (b *runs) makeFiles(s *pod.Sandbox) error {
	f, plan := b.Pods.FilesOf(s.ID()), s.Spec().Plan
	hostname := s.Config().GetHostname()
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	err := os.WriteFile(f.Hostname, []byte(hostname+"\n"), 0o644)
	if err == nil {
		err = copyHostFile("/etc/hosts", f.Hosts)
	}
	if err == nil {
		err = writeResolvConf(s.Config().GetDnsConfig(), f.ResolvConf)
	}
	if err == nil {
		err = errors.Join(plan.Chown(f.Hostname), plan.Chown(f.Hosts), plan.Chown(f.ResolvConf))
	}
	if err == nil && plan.IPC {
		err = mountShm(f.Shm, plan.User)
	}
	if err != nil {
		return fmt.Errorf("sandbox files: %w", err)
	}
	return nil
}

func mountShm(dir string, u *namespaces.User) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	options := fmt.Sprintf("mode=1777,size=%d", shmSize)
	if u != nil {
		options += fmt.Sprintf(",uid=%d,gid=%d", u.UIDs.HostID, u.GIDs.HostID)
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount shared memory: %w", err)
	}
	return nil
}

func copyHostFile(from, to string) error {
	b, err := os.ReadFile(from)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// writeResolvConf writes the pod's DNS configuration, by default the node's.
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
