// Package podmetrics turns what was measured into the metrics of the CRI, under
// the names that cAdvisor gave them.
//
// One table has each metric's name, labels and origin, so that what is declared
// and what is sent cannot differ. A metric that the host cannot measure is in
// neither; one that a single container does not tell is not sent for it. The
// package is pure.
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

// Subject is what a sample is about. A pod as a whole has neither a container's
// name nor an image.
type Subject struct{ Pod, Namespace, Container, ID, Image string }

// subjectLabels are the labels that every metric begins with.
var subjectLabels = []string{"pod", "namespace", "container", "id", "image"}

func (s Subject) values() []string {
	return []string{s.Pod, s.Namespace, s.Container, s.ID, s.Image}
}

// Sample is what was measured at one time about one pod or container. The zero
// value of a field is not known.
type Sample struct {
	Subject
	// Seen is when it was there, Started since when.
	Seen, Started time.Time
	// Cgroup is what it uses.
	Cgroup                              cgroup.Detail
	Processes, FileDescriptors, Sockets cgroup.Value
	// OpenFilesLimit is the soft limit of its first process.
	OpenFilesLimit cgroup.Value
	Network        []network.InterfaceStats
	Filesystem     Filesystem
	// BlockIO is its traffic by device.
	BlockIO []BlockIO
	Spec    *Spec
}

// Filesystem is what is used of the filesystem of a container's writable layer,
// and what that has in all.
type Filesystem struct {
	Device                          string
	Used, Limit, Inodes, InodesFree cgroup.Value
}

// BlockIO is the traffic with one block device.
type BlockIO struct {
	Device, Major, Minor string
	cgroup.DeviceIO
}

// Spec is what a container may use. A limit that is not known is none.
type Spec struct {
	// CPUPeriod and CPUQuota are in microseconds, CPUShares relative.
	CPUPeriod, CPUQuota, CPUShares cgroup.Value
	// MemoryLimit, MemoryReservation and SwapLimit are in bytes; the latter is of
	// memory and swap together.
	MemoryLimit, MemoryReservation, SwapLimit cgroup.Value
}

// family is one metric's description, and where its values come from.
type family struct {
	name, help string
	kind       runtimeapi.MetricType
	// labels come after those of the subject.
	labels []string
	// measured reports whether the host can; nil is always.
	measured func(cgroup.Facts) bool
	// read calls send with each value and the values of labels.
	read func(s *Sample, send send)
}

type send func(v cgroup.Value, labels ...string)

// Descriptors are what metrics this host has.
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

// Of returns what is known of a sample. The metrics share their labels: do not
// change them.
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
