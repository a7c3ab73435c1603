package probe

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
)

// Identify looks at the executable at path without running it. It follows
// symbolic links, but Path stays as given: it is what gets run.
func Identify(path string) (Identity, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return Identity{}, fmt.Errorf("runtime binary: %w; install it or correct the handler's runtime_path: %w", err, errdefs.ErrUnavailable)
	}
	if !fi.Mode().IsRegular() || fi.Mode().Perm()&0o111 == 0 {
		return Identity{}, fmt.Errorf("runtime binary %s is not an executable file (%s); correct the handler's runtime_path: %w", path, fi.Mode(), errdefs.ErrUnavailable)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return Identity{}, fmt.Errorf("runtime binary %s: stat has no inode: %w", path, errdefs.ErrInternal)
	}
	return Identity{
		Path: path, Dev: st.Dev, Inode: st.Ino, Size: fi.Size(), ModTime: fi.ModTime(), ChangeTime: time.Unix(st.Ctim.Unix()),
	}, nil
}

// Same compares without regard to how a time is represented.
func (i Identity) Same(o Identity) bool {
	return i.Path == o.Path && i.Dev == o.Dev && i.Inode == o.Inode && i.Size == o.Size &&
		i.ModTime.Equal(o.ModTime) && i.ChangeTime.Equal(o.ChangeTime)
}
