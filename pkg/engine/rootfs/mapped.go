package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/engine/idmap"
	"github.com/berth-cri/berth/pkg/engine/mountpoint"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/probe"
)

// MapFor mounts with mapped ids what a runtime would fail to map, and has the
// spec bind that. The mounts go with those of the root filesystem.
func (m *Mounts) MapFor(c *pod.Container, spec *specs.Spec, runtime *probe.Runtime) error {
	which, err := ocispec.MountsToMap(spec, runtime)
	if err != nil {
		return err
	}
	for _, i := range which {
		bind := &spec.Mounts[i]
		target := filepath.Join(m.pods.MappedDir(c.ID()), strconv.Itoa(i))
		if err := makeLike(bind.Source, target); err != nil {
			return fmt.Errorf("mount %s: %w", bind.Destination, err)
		}
		if err := idmap.Bind(c.Sandbox.Status().Namespaces.User, bind.Source, target); err != nil {
			return fmt.Errorf("mount %s: %w", bind.Destination, err)
		}
		bind.Source, bind.UIDMappings, bind.GIDMappings = target, nil, nil
	}
	return nil
}

func makeLike(source, target string) error {
	st, err := os.Stat(source)
	if err != nil {
		return err
	}
	if st.IsDir() {
		return os.MkdirAll(target, 0o711)
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o711); err != nil {
		return err
	}
	return os.WriteFile(target, nil, 0o600)
}

// unmountBelow goes by what is there and not by a record, which may be lost.
func unmountBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if err := mountpoint.Unmount(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
