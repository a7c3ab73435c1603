package conform

import (
	"fmt"
	"strconv"
	"strings"
)

// Seen is what a program observed inside a pod.
type Seen struct {
	Kernel Kernel
	// Devices are those below /dev that are not in every container.
	Devices []Device
	// Unreadable are paths below /dev that could not be inspected.
	Unreadable []string
	// Effective and Bounding are capability sets as bit masks; see capabilities(7).
	Effective, Bounding uint64
	NoNewPrivileges     bool
	// Filtered: a seccomp filter is in effect.
	Filtered bool
	// KernelLog: the kernel log can be read.
	KernelLog bool
	// Processes counts the visible processes, including the program itself.
	Processes int
}

// Device is a device file.
type Device struct {
	Path string
	// Block is set for block devices, which are numbered separately.
	Block        bool
	Major, Minor uint32
}

func (d Device) String() string {
	kind := "c"
	if d.Block {
		kind = "b"
	}
	return fmt.Sprintf("%s (%s %d:%d)", d.Path, kind, d.Major, d.Minor)
}

// usual reports whether every container has the device: null, zero, full, random, urandom, tty,
// console and ptmx. Terminals such as /dev/pts/0 are the node's: a self-check pod has none.
func (d Device) usual() bool {
	switch {
	case d.Block:
		return false
	case d.Major == 1:
		return d.Minor == 3 || d.Minor == 5 || d.Minor == 7 || d.Minor == 8 || d.Minor == 9
	case d.Major == 5:
		return d.Minor <= 2
	}
	return false
}

// virtual reports whether the device has no hardware behind it. These are fuse and tun, which
// gVisor shows to all containers, and terminals.
func (d Device) virtual() bool {
	return !d.Block && (d.Major == 10 && (d.Minor == 229 || d.Minor == 200) || d.Major >= 136 && d.Major <= 143)
}

// Parse reads the output of berth-pause in inspection mode: a key and a value on each line.
func Parse(text string) (*Seen, error) {
	s, keys := &Seen{}, map[string]bool{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
		keys[key] = true
		if err := s.set(key, value); err != nil {
			return nil, fmt.Errorf("parse the self-check pod's output: %q: %w", line, err)
		}
	}
	for _, key := range []string{"release", "version", "effective", "bounding", "no-new-privileges", "seccomp", "kernel-log", "processes", "end"} {
		if !keys[key] {
			return nil, fmt.Errorf("the self-check pod's output has no %q", key)
		}
	}
	return s, nil
}

func (s *Seen) set(key, value string) (err error) {
	switch key {
	case "release":
		s.Kernel.Release = value
	case "version":
		s.Kernel.Version = value
	case "boot-id":
		s.Kernel.BootID = value
	case "device":
		var d Device
		if d, err = device(value); err == nil && !d.usual() {
			s.Devices = append(s.Devices, d)
		}
	case "unreadable":
		s.Unreadable = append(s.Unreadable, value)
	case "effective":
		s.Effective, err = strconv.ParseUint(value, 16, 64)
	case "bounding":
		s.Bounding, err = strconv.ParseUint(value, 16, 64)
	case "no-new-privileges":
		s.NoNewPrivileges, err = strconv.ParseBool(value)
	case "seccomp":
		s.Filtered = value == "2"
	case "kernel-log":
		s.KernelLog, err = strconv.ParseBool(value)
	case "processes":
		s.Processes, err = strconv.Atoi(value)
	}
	return err
}

// device parses a line such as "c 1 3 /dev/null".
func device(text string) (Device, error) {
	words := strings.SplitN(text, " ", 4)
	if len(words) < 4 {
		return Device{}, fmt.Errorf("not a device: %q", text)
	}
	major, err := strconv.ParseUint(words[1], 10, 32)
	if err != nil {
		return Device{}, err
	}
	minor, err := strconv.ParseUint(words[2], 10, 32)
	if err != nil {
		return Device{}, err
	}
	return Device{Path: words[3], Block: words[0] == "b", Major: uint32(major), Minor: uint32(minor)}, nil
}
