package ocispec

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxLinks limits the links on a path, as in the kernel.
const maxLinks = 40

// Targets are the resolved destinations of a container's mounts: links in its image, or in earlier
// mounts, may lead to another path in the container.
type Targets struct {
	rootfs string
	// mounted are in mount order.
	mounted []target
}

type target struct{ path, source string }

// ResolveTargets resolves the destinations of requested mounts in the root filesystem at rootfs on
// the host, and refuses those that CheckProc refuses. images is Container.ImageMounts.
func ResolveTargets(rootfs string, mounts []*runtimeapi.Mount, images map[string]string) (*Targets, error) {
	t := &Targets{rootfs: rootfs}
	ordered := slices.Clone(mounts)
	slices.SortStableFunc(ordered, func(a, b *runtimeapi.Mount) int {
		return depth(containerPath(a.GetContainerPath())) - depth(containerPath(b.GetContainerPath()))
	})
	for _, m := range ordered {
		asked := containerPath(m.GetContainerPath())
		at, err := t.Resolve(asked)
		if err != nil {
			return nil, fmt.Errorf("mount %.200q: %w", asked, err)
		}
		source := m.GetHostPath()
		if isImageMount(m) {
			source = images[asked]
		} else if resolved, err := filepath.EvalSymlinks(source); err == nil {
			source = resolved
		}
		if err := overProc(asked, at, source); err != nil {
			return nil, err
		}
		t.mounted = append(t.mounted, target{at, source})
	}
	return t, nil
}

// Cover reports whether a mount is at p, a resolved path, or above it.
func (t *Targets) Cover(p string) bool {
	return slices.ContainsFunc(t.mounted, func(m target) bool { return below(p, m.path) })
}

// Resolve follows the links on a path in the container; parts that do not exist stay unchanged. It
// follows no links in /proc, because they depend on the process that reads them.
func (t *Targets) Resolve(p string) (string, error) {
	at, left, links := "/", strings.Split(path.Clean("/"+p), "/"), 0
	for len(left) > 0 {
		name := left[0]
		left = left[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = path.Dir(at)
			continue
		}
		next := path.Join(at, name)
		to, err := t.readlink(next)
		switch {
		case err != nil:
			return "", err
		case to == "":
			at = next
			continue
		case path.IsAbs(to):
			at = "/"
		}
		if links++; links > maxLinks {
			return "", invalid("%.200q has too many levels of symbolic links", p)
		}
		left = append(strings.Split(to, "/"), left...)
	}
	return at, nil
}

// readlink returns the target of a link of the container; "" if p is not a link.
func (t *Targets) readlink(p string) (string, error) {
	if below(p, "/proc") {
		return "", nil
	}
	host := filepath.Join(t.rootfs, p)
	for _, m := range t.mounted {
		if rest, inside := strings.CutPrefix(p, m.path+"/"); inside {
			host = filepath.Join(m.source, rest)
		} else if p == m.path {
			return "", nil
		}
	}
	to, err := os.Readlink(host)
	switch {
	case err == nil:
		return to, nil
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return "", nil
	case errors.Is(err, unix.ENAMETOOLONG):
		return "", invalid("%.64q… is too long", p)
	default:
		return "", fmt.Errorf("read link %.200q of the image: %w", p, err)
	}
}
