package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Kill sends SIGKILL to every process in the cgroup and its children, including frozen ones, and
// returns when none is left or the context ends. A cgroup that is gone is not an error.
func (p Paths) Kill(ctx context.Context) error {
	err := retry(ctx, func() (bool, error) {
		if err := p.killOnce(); err != nil {
			return false, err
		}
		pids, err := p.Processes()
		return len(pids) == 0, err
	})
	if err != nil {
		return fmt.Errorf("kill the processes of a cgroup: %w", err)
	}
	return nil
}

func (p Paths) killOnce() error {
	if p.Unified != "" {
		err := os.WriteFile(filepath.Join(p.Unified, "cgroup.kill"), []byte("1"), 0)
		if err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrNotExist) { // kernels before 5.14 have no such file
			return ignoreGone(err)
		}
	}
	return p.killFrozen()
}

// killFrozen freezes the cgroup while it signals, so that no process forks and no id is reused
// meanwhile. If it cannot freeze, Kill repeats.
func (p Paths) killFrozen() error {
	defer p.freeze(false)
	p.freeze(true)
	pids, err := p.Processes()
	for _, pid := range pids {
		if killErr := unix.Kill(pid, unix.SIGKILL); killErr != nil && !errors.Is(killErr, unix.ESRCH) {
			err = errors.Join(err, fmt.Errorf("process %d: %w", pid, killErr))
		}
	}
	return err
}

// freeze freezes or thaws the cgroup, if the host supports it.
func (p Paths) freeze(frozen bool) {
	file, words := filepath.Join(p.Dir("freezer"), "freezer.state"), [2]string{"THAWED", "FROZEN"}
	if p.Unified != "" {
		file, words = filepath.Join(p.Unified, "cgroup.freeze"), [2]string{"0", "1"}
	}
	word := words[0]
	if frozen {
		word = words[1]
	}
	_ = os.WriteFile(file, []byte(word), 0) // without it Kill only takes longer
}

// Remove removes the cgroup, and children that the container created in it, from every hierarchy;
// its parents belong to the kubelet and stay. A cgroup that is gone is not an error. If it still
// has processes, Remove retries for up to two seconds or until the context ends, because the kernel
// removes exited processes with a delay.
func (p Paths) Remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	return oncePerReason(p.directories(), func(dir string) error { return removeTree(ctx, dir) })
}

// oncePerReason removes directories and returns one error per reason, because removal mostly fails
// in every hierarchy for the same reason.
func oncePerReason(dirs []string, remove func(dir string) error) error {
	var errs []error
	reasons := map[string]bool{}
	for _, dir := range dirs {
		err := remove(dir)
		if err == nil {
			continue
		}
		if reason := strings.ReplaceAll(err.Error(), dir, ""); !reasons[reason] {
			reasons[reason] = true
			errs = append(errs, fmt.Errorf("remove cgroup %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

const removeTimeout = 2 * time.Second

func removeTree(ctx context.Context, root string) error {
	return retry(ctx, func() (bool, error) {
		err := removeOnce(root)
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOTEMPTY) {
			return false, nil
		}
		return err == nil, err
	})
}

// removeOnce removes directories, the deepest first. The files in a cgroup disappear with it.
func removeOnce(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		if entry.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		err = errors.Join(err, ignoreGone(rmdir(dir)))
	}
	return err
}

func rmdir(dir string) error {
	if err := unix.Rmdir(dir); err != nil {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// retry calls f until it is done or fails, at growing intervals.
func retry(ctx context.Context, f func() (done bool, err error)) error {
	for wait := time.Millisecond; ; wait = min(wait*2, 50*time.Millisecond) {
		done, err := f()
		if done || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("still in use: %w", ctx.Err())
		case <-time.After(wait):
		}
	}
}
