package cgroup

import (
	"bytes"
	"cmp"
	"slices"
)

// DeviceIO is the traffic of a cgroup with one block device.
type DeviceIO struct {
	// Device is major:minor.
	Device                          string
	ReadBytes, WriteBytes           uint64
	ReadOperations, WriteOperations uint64
}

// deviceTable maps devices to their traffic.
type deviceTable map[string]*DeviceIO

// set accepts the keys of v2's io.stat and ignores others.
func (t deviceTable) set(device, key, value []byte) {
	io := t[string(device)]
	if io == nil {
		io = &DeviceIO{Device: string(device)}
		t[io.Device] = io
	}
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

func readUnifiedIO(d *dir) []DeviceIO {
	t := deviceTable{}
	t.addUnified(d.read("io.stat"))
	return t.sorted()
}

func readV1IO(d *dir) []DeviceIO {
	t := deviceTable{}
	t.addV1(d.read("blkio.throttle.io_service_bytes_recursive"), "rbytes", "wbytes")
	t.addV1(d.read("blkio.throttle.io_serviced_recursive"), "rios", "wios")
	return t.sorted()
}

// addUnified parses lines such as "254:0 rbytes=1 wbytes=2 rios=3 wios=4 …".
func (t deviceTable) addUnified(text []byte) {
	for line := range bytes.Lines(text) {
		words := bytes.Fields(line)
		for i := 1; i < len(words); i++ {
			key, value, _ := bytes.Cut(words[i], []byte{'='})
			t.set(words[0], key, value)
		}
	}
}

// addV1 parses lines such as "254:0 Read 4096"; read and write are the keys of v2.
func (t deviceTable) addV1(text []byte, read, write string) {
	keys := map[string]string{"Read": read, "Write": write}
	for line := range bytes.Lines(text) {
		if words := bytes.Fields(line); len(words) == 3 {
			t.set(words[0], []byte(keys[string(words[1])]), words[2])
		}
	}
}

func (t deviceTable) sorted() []DeviceIO {
	out := make([]DeviceIO, 0, len(t))
	for _, io := range t {
		out = append(out, *io)
	}
	slices.SortFunc(out, func(a, b DeviceIO) int { return cmp.Compare(a.Device, b.Device) })
	return out
}
