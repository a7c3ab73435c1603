package disk

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// overlayProof caches the result of probeOverlay.
type overlayProof struct {
	mu       sync.Mutex
	known    bool
	volatile []string
	err      error
}

// Get calls probeOverlay the first time. A full filesystem proves nothing about overlayfs: Get then
// assumes that overlayfs works, and the next Get probes again.
func (p *overlayProof) Get(root, writable string) (volatile []string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		volatile, err := probeOverlay(root, writable)
		if err != nil && IsNoSpace(err) {
			return nil, nil
		}
		p.known, p.volatile, p.err = true, volatile, err
	}
	return p.volatile, p.err
}

// probeOverlay tests by a mount whether overlayfs works with layers in root and writable layers in
// writable, and whether it supports the option "volatile" (Linux 5.10). It first removes the
// leftovers of killed probes.
func probeOverlay(root, writable string) (volatile []string, err error) {
	if err := removeProbes(root, writable); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, removeProbes(root, writable)) }()
	lower, err := os.MkdirTemp(root, probePrefix)
	if err != nil {
		return nil, err
	}
	upper, err := os.MkdirTemp(writable, probePrefix)
	if err != nil {
		return nil, err
	}
	target := filepath.Join(lower, probeTarget)
	options := []string{}
	for name, dir := range map[string]string{"lowerdir": filepath.Join(lower, "lower"), "upperdir": filepath.Join(upper, "upper"), "workdir": filepath.Join(upper, "work"), "": target} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
		if name != "" {
			options = append(options, name+"="+dir)
		}
	}
	for _, volatile = range [][]string{{"volatile"}, nil} {
		m := mount.Mount{Type: "overlay", Source: "overlay", Options: append(options, volatile...)}
		if err = m.Mount(target); err == nil {
			return volatile, nil
		}
	}
	return nil, fmt.Errorf("cannot mount overlayfs on %s with %s: %w", root, writable, err)
}

// probePrefix begins the names of probeOverlay's directories, and probeTarget is its mount point in
// one of them.
const (
	probePrefix = "probe-"
	probeTarget = "merged"
)

// removeProbes unmounts all probes first: RemoveAll would delete files through a mount.
func removeProbes(parents ...string) error {
	var dirs []string
	for _, parent := range parents {
		left, err := filepath.Glob(filepath.Join(parent, probePrefix+"*"))
		if err != nil {
			return err
		}
		dirs = append(dirs, left...)
	}
	for _, dir := range dirs {
		if err := mount.UnmountAll(filepath.Join(dir, probeTarget), unix.MNT_DETACH); err != nil {
			return err
		}
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}

// Stack is the read-only part of an overlay mount.
type Stack struct {
	// Lower are the lower directories, topmost first.
	Lower []string
	// Options are the other options of the snapshotter's mounts ("index=off").
	Options []string
}

// ReadStack returns the lower directories in the mounts of a view: a bind mount of the only layer,
// or an overlay of several. It returns false for other mounts.
func ReadStack(mounts []mount.Mount) (Stack, bool) {
	if len(mounts) != 1 {
		return Stack{}, false
	}
	switch m := mounts[0]; m.Type {
	case "bind":
		return Stack{Lower: []string{m.Source}}, true
	case "overlay":
		upper, st := readOverlay(m.Options)
		return st, upper == "" && len(st.Lower) > 0
	}
	return Stack{}, false
}

func readOverlay(options []string) (upper string, st Stack) {
	for _, o := range options {
		switch key, value, _ := strings.Cut(o, "="); key {
		case "lowerdir":
			st.Lower = strings.Split(value, ":")
		case "upperdir":
			upper = value
		case "workdir", "ro":
		default:
			st.Options = append(st.Options, o)
		}
	}
	return upper, st
}

// Mounts returns an overlay of the stack with a writable layer.
func (st Stack) Mounts(upper, work string, options ...string) []mount.Mount {
	all := []string{"workdir=" + work, "upperdir=" + upper, "lowerdir=" + strings.Join(st.Lower, ":")}
	all = append(append(all, st.Options...), options...)
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: all}}
}

// Readonly returns an overlay without a writable layer. A single layer gets an empty one below it,
// because a bind mount is not safe: a container with CAP_SYS_ADMIN could make it writable, and
// other containers share the layer.
func (st Stack) Readonly(empty string) []mount.Mount {
	lower := st.Lower
	if len(lower) == 1 {
		lower = []string{lower[0], empty}
	}
	all := append([]string{"lowerdir=" + strings.Join(lower, ":")}, st.Options...)
	return []mount.Mount{{Type: "overlay", Source: "overlay", Options: all}}
}
