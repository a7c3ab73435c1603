package installer

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/installer/nodefs"
)

// programs are copied to a directory of their version.
type programs struct {
	root    nodefs.Root
	host    Host
	at      hook
	payload string
	self    string
	version string
}

func (*programs) name() string    { return programsStep }
func (p *programs) input() string { return p.version }
func (*programs) alone() bool     { return false }

func (p *programs) prepare(_ context.Context, saved []byte) ([]byte, error) {
	if saved == nil {
		for _, path := range append(nodefs.UnitPaths("berth"), home, configFile) {
			if _, err := os.Lstat(p.root.Path(path)); err == nil {
				return nil, fmt.Errorf("%s exists, and is not this installer's: purge the package and remove %s, or keep both and move the kubelet by hand (docs/migration.md)", path, path)
			}
		}
	}
	return []byte("{}"), nil
}

// holds implements lasting.
func (p *programs) holds(context.Context, []byte) error {
	brought, err := os.ReadDir(filepath.Join(p.payload, "bin"))
	if err != nil {
		return err
	}
	bin := filepath.Join(home, p.version, "bin")
	paths := []string{filepath.Join(bin, filepath.Base(rescueProgram))}
	for _, b := range brought {
		paths = append(paths, filepath.Join(bin, b.Name()))
	}
	return p.root.There(paths...)
}

func (p *programs) do(ctx context.Context, _ []byte) error {
	if err := os.MkdirAll(p.root.Path(home), 0o755); err != nil {
		return err
	}
	dir := filepath.Join(home, p.version)
	if err := p.root.Bring(p.payload, "", nil, dir, nil, func() { p.at("installer.programs.half") }); err != nil {
		return err
	}
	// A version that was there already may lack something, and may run meanwhile.
	if err := p.root.Complete(p.payload, dir); err != nil {
		return err
	}
	self, err := os.ReadFile(p.self)
	if err != nil {
		return err
	}
	if err := p.root.Put(filepath.Join(home, p.version, "bin", filepath.Base(rescueProgram)), self, 0o755); err != nil {
		return err
	}
	return relabel(ctx, p.root, p.host, home)
}

// relabel gives files the labels that a node with SELinux has for their place. What a pod
// copies has those of the pod, and systemd does not start such programs.
func relabel(ctx context.Context, root nodefs.Root, host Host, path string) error {
	if !root.ExistsAny("/sys/fs/selinux/enforce") || !root.ExistsAny("/usr/sbin/restorecon", "/sbin/restorecon") {
		return nil
	}
	_, err := host.Run(ctx, "restorecon", "-R", path)
	return err
}

func (p *programs) undo(context.Context, []byte) error { return os.RemoveAll(p.root.Path(home)) }
