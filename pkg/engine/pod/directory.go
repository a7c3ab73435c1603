package pod

import (
	"errors"
	"io/fs"
	"os"
)

// MakePodDir makes the directory of a sandbox or a container. What is mounted
// below it may hold setuid programs, which no user of the host may run, and
// shared memory, which none may write.
func (p *Plan) MakePodDir(dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if p.User == nil {
		return nil
	}
	// The root of a pod that has users of its own gets in: its runtime looks for what it
	// mounts as that one.
	_, gid := p.Root()
	return errors.Join(os.Lchown(dir, 0, int(gid)), os.Chmod(dir, 0o710))
}
