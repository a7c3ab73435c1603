// Package podmetrics converts measurements to the metrics of the CRI, under cAdvisor's names.
//
// One table contains each metric's name, labels and origin, so that the declared and the sent
// metrics cannot differ. A metric that the host cannot measure is in neither; one that is unknown
// for a single container is not sent for it. The package is pure.
//
// The CRI has no fractions: seconds are whole, rounded down.
package podmetrics

import (
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/network"
)

// Subject identifies the object of a sample. A pod as a whole has neither a container name nor an
// image.
type Subject struct{ Pod, Namespace, Container, ID, Image string }

// subjectLabels are the first labels of every metric.
var subjectLabels = []string{"pod", "namespace", "container", "id", "image"}

func (s Subject) values() []string {
	return []string{s.Pod, s.Namespace, s.Container, s.ID, s.Image}
}

// Sample is the measurement of one pod or container at one time. The zero value of a field means
// unknown.
type Sample struct {
	Subject
	// Seen is the time of the measurement, Started the start of the subject.
	Seen, Started time.Time
	// Cgroup is the subject's usage.
	Cgroup                              cgroup.Detail
	Processes, FileDescriptors, Sockets cgroup.Value
	// OpenFilesLimit is the soft limit of the subject's first process.
	OpenFilesLimit cgroup.Value
	Network        []network.InterfaceStats
	Filesystem     Filesystem
	// BlockIO is the subject's traffic by device.
	BlockIO []BlockIO
	Spec    *Spec
}

// Filesystem is a container's usage of the filesystem of its writable layer, and the filesystem's
// total size.
type Filesystem struct {
	Device                          string
	Used, Limit, Inodes, InodesFree cgroup.Value
}

// BlockIO is the traffic with one block device.
type BlockIO struct {
	Device, Major, Minor string
	cgroup.DeviceIO
}

// Spec contains the limits of a container. An unknown limit means unlimited.
type Spec struct {
	// CPUPeriod and CPUQuota are in microseconds, CPUShares relative.
	CPUPeriod, CPUQuota, CPUShares cgroup.Value
	// MemoryLimit, MemoryReservation and SwapLimit are in bytes; SwapLimit is memory and swap
	// together.
	MemoryLimit, MemoryReservation, SwapLimit cgroup.Value
}

// family describes one metric and the source of its values.
type family struct {
	name, help string
	kind       runtimeapi.MetricType
	// labels follow those of the subject.
	labels []string
	// measured reports whether the host measures it; nil means always.
	measured func(cgroup.Facts) bool
	// read calls send with each value and the values of labels.
	read func(s *Sample, send send)
}

type send func(v cgroup.Value, labels ...string)

// Descriptors returns the descriptors of this host's metrics.
func Descriptors(f cgroup.Facts) []*runtimeapi.MetricDescriptor {
	var all []*runtimeapi.MetricDescriptor
	for i := range families {
		if m := &families[i]; m.on(f) {
			all = append(all, &runtimeapi.MetricDescriptor{
				Name: m.name, Help: m.help, LabelKeys: slices.Concat(subjectLabels, m.labels),
			})
		}
	}
	return all
}

func (m *family) on(f cgroup.Facts) bool { return m.measured == nil || m.measured(f) }

// Of returns the known metrics of a sample. They share their labels: do not modify them.
func Of(s Sample, f cgroup.Facts) []*runtimeapi.Metric {
	subject := s.values()
	all := make([]*runtimeapi.Metric, 0, len(families))
	for i := range families {
		m := &families[i]
		if !m.on(f) {
			continue
		}
		m.read(&s, func(v cgroup.Value, labels ...string) {
			if !v.Known {
				return
			}
			values := subject
			if len(labels) > 0 {
				values = slices.Concat(subject, labels)
			}
			all = append(all, &runtimeapi.Metric{
				Name: m.name, MetricType: m.kind, LabelValues: values, Value: &runtimeapi.UInt64Value{Value: v.N},
			})
		})
	}
	return all
}
