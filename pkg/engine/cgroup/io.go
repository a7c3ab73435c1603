package cgroup

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// DeviceIO is what a cgroup read from and wrote to one block device.
type DeviceIO struct {
	// Device is major:minor.
	Device                          string
	ReadBytes, WriteBytes           uint64
	ReadOperations, WriteOperations uint64
}

// ReadIO reads a cgroup's block device traffic, by device. A cgroup that is
// gone, or a host without the io controller, is errdefs.ErrNotFound.
func ReadIO(p Paths) ([]DeviceIO, error) {
	path := cmp.Or(p.Unified, p.V1["blkio"])
	if path == "" {
		return nil, errdefs.ErrNotFound.WithMessage("cgroup io statistics: this host has no io controller")
	}
	d, ok, err := openDir(path)
	if err != nil {
		return nil, fmt.Errorf("cgroup io statistics: %w", err)
	}
	if !ok {
		return nil, errdefs.ErrNotFound.WithMessage("cgroup io statistics: the cgroup is gone")
	}
	defer d.close()
	buf := buffers.Get().(*buffer)
	defer buffers.Put(buf)
	devices := deviceTable{}
	if p.Unified != "" {
		devices.addUnified(d.read("io.stat", buf))
	} else {
		devices.addV1(d.read("blkio.throttle.io_service_bytes_recursive", buf), (*DeviceIO).bytes)
		devices.addV1(d.read("blkio.throttle.io_serviced_recursive", buf), (*DeviceIO).operations)
	}
	return devices.sorted(), d.err
}

func (io *DeviceIO) bytes() (read, write *uint64) { return &io.ReadBytes, &io.WriteBytes }
func (io *DeviceIO) operations() (read, write *uint64) {
	return &io.ReadOperations, &io.WriteOperations
}

type deviceTable map[string]*DeviceIO

func (t deviceTable) device(name string) *DeviceIO {
	if t[name] == nil {
		t[name] = &DeviceIO{Device: name}
	}
	return t[name]
}

// addUnified takes lines such as "254:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func (t deviceTable) addUnified(text []byte) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) < 2 {
			continue
		}
		io := t.device(string(words[0]))
		for _, word := range words[1:] {
			key, value, _ := bytes.Cut(word, []byte{'='})
			n, _ := parseUint(value)
			switch string(key) {
			case "rbytes":
				io.ReadBytes = n
			case "wbytes":
				io.WriteBytes = n
			case "rios":
				io.ReadOperations = n
			case "wios":
				io.WriteOperations = n
			}
		}
	}
}

// addV1 takes lines such as "254:0 Read 4096", into the fields that it is told.
func (t deviceTable) addV1(text []byte, into func(*DeviceIO) (read, write *uint64)) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		if len(words) != 3 {
			continue
		}
		read, write := into(t.device(string(words[0])))
		n, _ := parseUint(words[2])
		switch string(words[1]) {
		case "Read":
			*read = n
		case "Write":
			*write = n
		}
	}
}

func (t deviceTable) sorted() []DeviceIO {
	out := make([]DeviceIO, 0, len(t))
	for _, io := range t {
		out = append(out, *io)
	}
	slices.SortFunc(out, func(a, b DeviceIO) int { return strings.Compare(a.Device, b.Device) })
	return out
}
