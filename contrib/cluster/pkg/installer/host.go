package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cri/berth/pkg/nodefs"
)

// Chroot runs the node's programs in the node's root directory (chroot). In a container this needs
// the node's PID namespace: systemctl does nothing if process 1 has another root.
type Chroot struct {
	Root string
}

var searched = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// limit bounds the run of a program: one that hangs, such as systemctl while a unit does not finish
// starting, would block the repair of the node. The limit exceeds the longest restart of
// berth.service: 30 s to stop and 5 min to start.
const limit = 7 * time.Minute

// Run implements Host.
func (c Chroot) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	return c.run(ctx, limit, name, args...)
}

func (c Chroot) run(ctx context.Context, limit time.Duration, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not exit within %s", limit))
	defer cancel()
	path := name
	if !filepath.IsAbs(name) {
		path = c.find(name)
		if path == "" {
			return nil, fmt.Errorf("%s is not on the node; searched %s", name, strings.Join(searched, ", "))
		}
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + strings.Join(searched, ":"), "LC_ALL=C.UTF-8", "SYSTEMD_PAGER="}
	if filepath.Clean(c.Root) != "/" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.Root}
	}
	cmd.WaitDelay = time.Second // child processes may keep its output open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err == nil {
		return out, nil
	}
	if ctx.Err() != nil {
		err = errors.Join(context.Cause(ctx), err)
	}
	err = fmt.Errorf("%s: %w", strings.Join(append([]string{name}, args...), " "), err)
	if said := strings.TrimSpace(stderr.String()); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return out, err
}

func (c Chroot) find(name string) string {
	for _, dir := range searched {
		if _, err := os.Lstat(filepath.Join(nodefs.Root(c.Root).Resolved(dir), name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return ""
}
