package ocispec

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// procFiles are the files of /proc that may be mounted over, for lxcfs, checkpoints and FIPS. runc
// allows the same files.
var procFiles = []string{
	"/proc/cpuinfo", "/proc/diskstats", "/proc/loadavg", "/proc/meminfo", "/proc/slabinfo", "/proc/stat",
	"/proc/swaps", "/proc/sys/crypto/fips_enabled", "/proc/sys/kernel/ns_last_pid", "/proc/uptime",
}

// CheckProc refuses mounts that would hide a container's /proc, or a part of it, because a runtime
// confines the container by writing to /proc. runc refuses such mounts when it starts a container,
// crun does not. ResolveTargets checks mounts that reach /proc by a link.
func CheckProc(mounts []*runtimeapi.Mount) error {
	for _, m := range mounts {
		dst := containerPath(m.GetContainerPath())
		if err := overProc(dst, dst, m.GetHostPath()); err != nil {
			return err
		}
	}
	return nil
}

// CheckProcOf is CheckProc for a finished spec, which plugins may have changed.
func CheckProcOf(s *specs.Spec) error {
	for _, m := range s.Mounts {
		dst := containerPath(m.Destination)
		if dst == "/proc" && m.Type == "proc" {
			continue
		}
		if err := overProc(dst, dst, m.Source); err != nil {
			return err
		}
	}
	return nil
}

// overProc checks a mount of source at dst; asked is the destination in the request.
func overProc(asked, dst, source string) error {
	what := fmt.Sprintf("mount %.200q", asked)
	if dst != asked {
		what += fmt.Sprintf(", which a link leads to %.200q,", dst)
	}
	switch {
	case !below(dst, "/proc"):
		return nil
	case dst != "/proc":
		if slices.Contains(procFiles, dst) {
			return nil
		}
		return invalid("%s is inside /proc, where mounts are only allowed over %s; use another path", what, strings.Join(procFiles, ", "))
	}
	isProc, err := isProcfs(source)
	if err != nil {
		return unmet("%s: %w", what, err)
	}
	if !isProc {
		return invalid("%s would hide the container's /proc, because its source %.200q is not a proc file system; use another path", what, source)
	}
	return nil
}

func below(p, dir string) bool {
	return p == dir || strings.HasPrefix(p, strings.TrimSuffix(dir, "/")+"/")
}

func isProcfs(file string) (bool, error) {
	if !path.IsAbs(file) { // an image
		return false, nil
	}
	var st unix.Statfs_t
	err := unix.Statfs(file, &st)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // the engine would create it, as a directory
	}
	return err == nil && st.Type == unix.PROC_SUPER_MAGIC, err
}
