package main

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// look writes the container's view of its kernel and of the node, one key and value per line, in
// the format of pkg/probe/conform. It omits what cannot be read.
func look() {
	var out strings.Builder
	line := func(key, value string) {
		out.WriteString(key + " " + strings.ReplaceAll(value, "\n", " ") + "\n")
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		line("release", unix.ByteSliceToString(name.Release[:]))
		line("version", unix.ByteSliceToString(name.Version[:]))
	}
	if id, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		line("boot-id", strings.TrimSpace(string(id)))
	}
	devices("/dev", line)
	if effective, err := capabilities(); err == nil {
		line("effective", strconv.FormatUint(effective, 16))
	}
	line("bounding", strconv.FormatUint(bounding(), 16))
	if n, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil {
		line("no-new-privileges", strconv.Itoa(n))
	}
	line("seccomp", strconv.Itoa(seccomp()))
	log := make([]byte, 1<<12)
	_, err := unix.Klogctl(unix.SYSLOG_ACTION_READ_ALL, log)
	line("kernel-log", strconv.FormatBool(err == nil))
	if n, err := processes(); err == nil {
		line("processes", strconv.Itoa(n))
	}
	line("end", "")
	_, _ = os.Stdout.WriteString(out.String())
}

// devices writes the device files below a directory, and unreadable paths: to prove that a device
// is absent, the list must be complete.
func devices(dir string, line func(key, value string)) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		line("unreadable", dir)
	}
	for _, e := range entries {
		path := dir + "/" + e.Name()
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			if !errors.Is(err, unix.ENOENT) {
				line("unreadable", path)
			}
			continue
		}
		kind := ""
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			devices(path, line)
		case unix.S_IFCHR:
			kind = "c"
		case unix.S_IFBLK:
			kind = "b"
		}
		if kind != "" {
			number := st.Rdev
			line("device", kind+" "+strconv.Itoa(int(unix.Major(number)))+" "+strconv.Itoa(int(unix.Minor(number)))+" "+path)
		}
	}
}

// capabilities returns the effective capabilities.
func capabilities() (uint64, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, nil
}

// bounding returns the capability bounding set.
func bounding() (all uint64) {
	for c := range 64 {
		n, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, uintptr(c), 0, 0, 0)
		if err != nil {
			break // the last capability
		}
		all |= uint64(n) << c
	}
	return all
}

// seccomp returns the mode, 2 with a filter. A rejected query proves that there is a filter.
func seccomp() int {
	n, _, errno := unix.Syscall6(unix.SYS_PRCTL, unix.PR_GET_SECCOMP, 0, 0, 0, 0, 0)
	if errno != 0 {
		if errno == unix.EPERM || errno == unix.EACCES {
			return 2
		}
		return 0
	}
	return int(n)
}

// processes counts the visible processes.
func processes() (n int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil {
			n++
		}
	}
	return n, nil
}
