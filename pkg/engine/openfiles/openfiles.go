// Package openfiles counts the open files of processes, by /proc.
//
// A process that exits during a call counts as one without open files, and is not an error.
package openfiles

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// Counted is the number of open descriptors, and of sockets among them.
type Counted struct{ Files, Sockets uint64 }

// Count counts the descriptors of all processes, until ctx ends.
func Count(ctx context.Context, pids []int) (Counted, error) {
	var c Counted
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return Counted{}, fmt.Errorf("count open files: %w", err)
		}
		if err := c.add(procfs.Path(pid, "fd")); err != nil && !gone(err) {
			return Counted{}, fmt.Errorf("count open files: %w", err)
		}
	}
	return c, nil
}

func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

func (c *Counted) add(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	var target [len("socket:[")]byte
	for _, name := range names {
		c.Files++
		n, err := unix.Readlinkat(int(d.Fd()), name, target[:])
		if err == nil && string(target[:n]) == "socket:[" {
			c.Sockets++
		}
	}
	return nil
}

// SoftLimit is the limit of a process's open descriptors; known is false if there is no limit, or
// if the process has exited.
func SoftLimit(pid int) (limit uint64, known bool, err error) {
	limits, err := os.ReadFile(procfs.Path(pid, "limits"))
	if err != nil && !gone(err) {
		return 0, false, fmt.Errorf("limit of open files: %w", err)
	}
	limit, known = parseSoft(string(limits))
	return limit, known, nil
}

// parseSoft reads the columns after the name of the limit: soft, hard, unit.
func parseSoft(limits string) (uint64, bool) {
	_, columns, _ := strings.Cut(limits, "Max open files")
	words := strings.Fields(columns)
	if len(words) == 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(words[0], 10, 64)
	return n, err == nil
}
