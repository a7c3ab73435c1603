package podmetrics

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/network"
)

// everything is a host that measures every metric.
var everything = cgroup.Facts{
	CPUTime: true, Quota: true, Memory: true, Pids: true, BlockIO: true, Swap: true,
	KernelMemory: true, PeakMemory: true, Hugetlb: true, HugetlbPeak: true, Pressure: true,
}

func known(n uint64) cgroup.Value { return cgroup.Value{N: n, Known: true} }

// full returns a container with every value known, and no two values equal.
func full() Sample {
	const second = 1e9
	return Sample{
		Subject: Subject{"web-0", "shop", "nginx", "c0ffee", "nginx:1"},
		Seen:    time.Unix(1000, 999), Started: time.Unix(900, 0),
		Cgroup: cgroup.Detail{
			Stats: cgroup.Stats{
				CPUUsageNano: known(12.9 * second), MemoryUsage: known(1), WorkingSet: known(2), RSS: known(3), Cache: known(4),
				MappedFile: known(5), ActiveFile: known(6), InactiveFile: known(7), SwapUsage: known(8),
				PageFaults: known(9), MajorPageFaults: known(10), Pids: known(11),
				CPUPressure:    &cgroup.Pressure{Some: cgroup.Stall{TotalNano: 21 * second}, Full: cgroup.Stall{TotalNano: 22 * second}},
				MemoryPressure: &cgroup.Pressure{Some: cgroup.Stall{TotalNano: 23 * second}, Full: cgroup.Stall{TotalNano: 24 * second}},
				IOPressure:     &cgroup.Pressure{Some: cgroup.Stall{TotalNano: 25 * second}, Full: cgroup.Stall{TotalNano: 26 * second}},
			},
			CPUUserNano: known(31 * second), CPUSystemNano: known(32 * second),
			Periods: known(33), ThrottledPeriods: known(34), ThrottledNano: known(35 * second),
			KernelMemory: known(36), PeakMemory: known(37), MemoryFailures: known(38), OOMKills: known(39),
			OwnPageFaults: known(40), OwnMajorPageFaults: known(41), PidsLimit: known(42),
			Hugetlb: []cgroup.Hugepages{{Size: "2MB", Usage: known(43), Peak: known(44)}},
		},
		Processes: known(51), FileDescriptors: known(52), Sockets: known(53), OpenFilesLimit: known(54),
		Network: []network.InterfaceStats{
			{Name: "eth0", RxBytes: 61, RxPackets: 62, RxErrors: 63, RxDropped: 64, TxBytes: 65, TxPackets: 66, TxErrors: 67, TxDropped: 68},
			{Name: "net1", RxBytes: 69},
		},
		Filesystem: Filesystem{"/dev/vda1", known(71), known(72), known(73), known(74)},
		BlockIO:    []BlockIO{{"/dev/vda", "254", "0", cgroup.DeviceIO{Device: "254:0", ReadBytes: 81, WriteBytes: 82, ReadOperations: 83, WriteOperations: 84}}},
		Spec: &Spec{
			CPUPeriod: known(91), CPUQuota: known(92), CPUShares: known(93),
			MemoryLimit: known(94), MemoryReservation: known(95), SwapLimit: known(96),
		},
	}
}

// wanted has the values of the metrics of full. A key is the metric's name with the values
// of its labels, except those of the subject.
var wanted = map[string]uint64{
	"cpu_usage_seconds_total total": 12, "cpu_user_seconds_total": 31, "cpu_system_seconds_total": 32,
	"cpu_cfs_periods_total": 33, "cpu_cfs_throttled_periods_total": 34, "cpu_cfs_throttled_seconds_total": 35,
	"memory_usage_bytes": 1, "memory_working_set_bytes": 2, "memory_rss": 3, "memory_cache": 4, "memory_mapped_file": 5,
	"memory_total_active_file_bytes": 6, "memory_total_inactive_file_bytes": 7, "memory_swap": 8,
	"memory_kernel_usage": 36, "memory_max_usage_bytes": 37, "memory_failcnt": 38, "oom_events_total": 39,
	"memory_failures_total pgfault container": 40, "memory_failures_total pgmajfault container": 41,
	"memory_failures_total pgfault hierarchy": 9, "memory_failures_total pgmajfault hierarchy": 10,
	"pressure_cpu_waiting_seconds_total": 21, "pressure_cpu_stalled_seconds_total": 22,
	"pressure_memory_waiting_seconds_total": 23, "pressure_memory_stalled_seconds_total": 24,
	"pressure_io_waiting_seconds_total": 25, "pressure_io_stalled_seconds_total": 26,
	"hugetlb_usage_bytes 2MB": 43, "hugetlb_max_usage_bytes 2MB": 44,
	"processes": 51, "threads": 11, "threads_max": 42, "file_descriptors": 52, "sockets": 53, "ulimits_soft max_open_files": 54,
	"network_receive_bytes_total eth0": 61, "network_receive_packets_total eth0": 62,
	"network_receive_errors_total eth0": 63, "network_receive_packets_dropped_total eth0": 64,
	"network_transmit_bytes_total eth0": 65, "network_transmit_packets_total eth0": 66,
	"network_transmit_errors_total eth0": 67, "network_transmit_packets_dropped_total eth0": 68,
	"network_receive_bytes_total net1": 69, "network_receive_packets_total net1": 0,
	"network_receive_errors_total net1": 0, "network_receive_packets_dropped_total net1": 0,
	"network_transmit_bytes_total net1": 0, "network_transmit_packets_total net1": 0,
	"network_transmit_errors_total net1": 0, "network_transmit_packets_dropped_total net1": 0,
	"fs_usage_bytes /dev/vda1": 71, "fs_limit_bytes /dev/vda1": 72, "fs_inodes_total /dev/vda1": 73, "fs_inodes_free /dev/vda1": 74,
	"fs_reads_bytes_total /dev/vda": 81, "fs_writes_bytes_total /dev/vda": 82, "fs_reads_total /dev/vda": 83, "fs_writes_total /dev/vda": 84,
	"blkio_device_usage_total /dev/vda 254 0 Read": 81, "blkio_device_usage_total /dev/vda 254 0 Write": 82,
	"spec_cpu_period": 91, "spec_cpu_quota": 92, "spec_cpu_shares": 93,
	"spec_memory_limit_bytes": 94, "spec_memory_reservation_limit_bytes": 95, "spec_memory_swap_limit_bytes": 96,
	"last_seen": 1000, "start_time_seconds": 900,
}

// flat checks the properties that all metrics share, and returns the metrics in the form of wanted.
func flat(t *testing.T, s Sample, all []*runtimeapi.Metric) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for _, m := range all {
		subject, rest := m.GetLabelValues()[:len(subjectLabels)], m.GetLabelValues()[len(subjectLabels):]
		test.EqualLists(t, fmt.Sprintf("the subject of %s", m.GetName()), subject, []string{s.Pod, s.Namespace, s.Container, s.ID, s.Image})
		if m.GetValue() == nil || m.GetTimestamp() != 0 {
			t.Errorf("%s is %v, want a value without a time", m.GetName(), m)
		}
		counts := strings.HasSuffix(m.GetName(), "_total") && !strings.HasPrefix(m.GetName(), "container_fs_inodes")
		if counts && m.GetMetricType() != runtimeapi.MetricType_COUNTER {
			t.Errorf("%s is a %s", m.GetName(), m.GetMetricType())
		}
		name, ok := strings.CutPrefix(m.GetName(), "container_")
		if !ok {
			t.Errorf("the name is %q", m.GetName())
		}
		key := strings.TrimSpace(name + " " + strings.Join(rest, " "))
		if _, twice := out[key]; twice {
			t.Errorf("%s was sent twice", key)
		}
		out[key] = m.GetValue().GetValue()
	}
	return out
}

func TestEverything(t *testing.T) {
	got := flat(t, full(), Of(full(), everything))
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if v, ok := got[key]; !ok || v != wanted[key] {
			t.Errorf("%s is %d, %v; want %d", key, v, ok, wanted[key])
		}
		delete(got, key)
	}
	for key := range got {
		t.Errorf("%s is not in wanted", key)
	}
}

// On every host, the metrics that are sent are those that are declared, with the declared
// number of labels.
func TestDescriptorsAgree(t *testing.T) {
	hosts := map[string]cgroup.Facts{"everything": everything, "nothing": {}}
	kinds := reflect.TypeFor[cgroup.Facts]()
	for i := range kinds.NumField() {
		only, without := cgroup.Facts{}, everything
		reflect.ValueOf(&only).Elem().Field(i).SetBool(true)
		reflect.ValueOf(&without).Elem().Field(i).SetBool(false)
		hosts["only "+kinds.Field(i).Name], hosts["all but "+kinds.Field(i).Name] = only, without
	}
	for name, facts := range hosts {
		t.Run(name, func(t *testing.T) {
			declared := map[string][]string{}
			for _, d := range Descriptors(facts) {
				if declared[d.GetName()] != nil {
					t.Errorf("%s is declared twice", d.GetName())
				}
				if !regexp.MustCompile(`^[A-Z].*\.$`).MatchString(d.GetHelp()) || !slices.Equal(d.GetLabelKeys()[:len(subjectLabels)], subjectLabels) {
					t.Errorf("descriptor %v", d)
				}
				declared[d.GetName()] = d.GetLabelKeys()
			}
			sent := map[string]bool{}
			for _, m := range Of(full(), facts) {
				if len(m.GetLabelValues()) != len(declared[m.GetName()]) {
					t.Errorf("%s has the labels %q, declared are %q", m.GetName(), m.GetLabelValues(), declared[m.GetName()])
				}
				sent[m.GetName()] = true
			}
			for name := range declared {
				if !sent[name] {
					t.Errorf("%s is declared but not sent", name)
				}
			}
		})
	}
	if all, none := len(Descriptors(everything)), len(Descriptors(cgroup.Facts{})); all != 58 || none >= all {
		t.Errorf("%d metrics in all, %d on a host without controllers", all, none)
	}
}

func TestWhatIsNotKnownIsNotSent(t *testing.T) {
	for name, tc := range map[string]struct {
		sample Sample
		want   []string
	}{
		"nothing": {Sample{}, nil},
		"a pod's network": {
			Sample{Network: []network.InterfaceStats{{Name: "eth0"}}},
			slices.DeleteFunc(slices.Sorted(maps.Keys(wanted)), func(key string) bool { return !strings.HasSuffix(key, " eth0") }),
		},
		"a container with few values": {
			Sample{Cgroup: cgroup.Detail{Stats: cgroup.Stats{CPUUsageNano: known(1e9), Pids: known(2)}}, Processes: known(2)},
			[]string{"cpu_usage_seconds_total total", "processes", "threads", "threads_max"},
		},
		"a container without limits": {
			Sample{Spec: &Spec{}},
			[]string{"spec_memory_limit_bytes", "spec_memory_reservation_limit_bytes", "spec_memory_swap_limit_bytes"},
		},
	} {
		got := slices.Sorted(maps.Keys(flat(t, tc.sample, Of(tc.sample, everything))))
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got %s, want %s", name, fmt.Sprint(got), fmt.Sprint(tc.want))
		}
	}
}
