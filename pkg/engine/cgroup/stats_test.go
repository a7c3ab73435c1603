package cgroup

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

// unifiedFiles are the files of a container's v2 cgroup on a 6.1 kernel.
var unifiedFiles = map[string]string{
	"cpu.stat":            "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
	"memory.current":      "10485760\n",
	"memory.max":          "20971520\n",
	"memory.swap.current": "4096\n",
	"memory.swap.max":     "max\n",
	"memory.stat":         "anon 4194304\nfile 6291456\nkernel_stack 16384\ninactive_anon 0\nactive_anon 4194304\nfile_mapped 1048576\nkernel 524288\ninactive_file 2097152\nactive_file 4194304\npgfault 1234\npgmajfault 5\n",
	"cpu.pressure":        "some avg10=0.12 avg60=1.25 avg300=0.40 total=9000\nfull avg10=0.00 avg60=0.00 avg300=0.01 total=10\n",
	"memory.pressure":     "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
	"memory.events":       "low 0\nhigh 0\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n",
	"memory.events.local": "low 0\nhigh 0\nmax 5\noom 2\noom_kill 0\noom_group_kill 0\n",
	"io.stat":             "254:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:0 \n254:1 rbytes=1 wbytes=2 rios=3 wios=4\n",
	"cgroup.procs":        "12\n34\n",
}

func known(n uint64) Value { return Value{n, true} }

func readStats(t *testing.T, p Paths) Stats {
	t.Helper()
	s := test.Value(ReadStats(p))(t)
	if age := time.Since(s.Time); age < 0 || age > time.Minute {
		t.Errorf("read at %v", s.Time)
	}
	s.Time = time.Time{}
	return s
}

func TestReadStatsUnified(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, unifiedFiles)
	got := readStats(t, Paths{Unified: dir})
	want := Stats{
		CPUUsageNano:    known(1_500_000_000),
		MemoryUsage:     known(10485760),
		WorkingSet:      known(8388608),
		RSS:             known(4194304),
		Cache:           known(6291456),
		MappedFile:      known(1048576),
		ActiveFile:      known(4194304),
		InactiveFile:    known(2097152),
		PageFaults:      known(1234),
		MajorPageFaults: known(5),
		MemoryLimit:     known(20971520),
		SwapUsage:       known(4096),
		CPUPressure: &Pressure{
			Some: Stall{Avg10: 0.12, Avg60: 1.25, Avg300: 0.40, TotalNano: 9_000_000},
			Full: Stall{Avg300: 0.01, TotalNano: 10_000},
		},
		MemoryPressure: &Pressure{},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// A disabled controller has no files, which is not an error.
func TestReadStatsUnifiedWithoutControllers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string]string{"cpu.stat": unifiedFiles["cpu.stat"]})
	if got, want := readStats(t, Paths{Unified: dir}), (Stats{CPUUsageNano: known(1_500_000_000)}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v", got)
	}
}

func TestReadStatsV1Files(t *testing.T) {
	root := t.TempDir()
	p := Paths{V1: map[string]string{}}
	for name, files := range map[string]map[string]string{
		"cpuacct": {"cpuacct.usage": "1234567\n"},
		"memory": {
			"memory.usage_in_bytes": "10485760\n",
			"memory.limit_in_bytes": "9223372036854771712\n",
			"memory.stat": "cache 1\nrss 2\ninactive_file 3\nhierarchical_memory_limit 20971520\nhierarchical_memsw_limit 31457280\n" +
				"total_rss 4194304\ntotal_swap 4096\ntotal_pgfault 11\ntotal_pgmajfault 2\ntotal_inactive_file 99999999\n" +
				"total_cache 21\ntotal_mapped_file 22\ntotal_active_file 23\n",
			"memory.failcnt":     "4\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		},
		"blkio": {
			"blkio.throttle.io_service_bytes_recursive": "254:0 Read 4096\n254:0 Write 8192\n254:0 Sync 1\n254:0 Total 12288\nTotal 12288\n",
			"blkio.throttle.io_serviced_recursive":      "254:0 Read 1\n254:0 Write 2\nTotal 3\n",
		},
	} {
		p.V1[name] = filepath.Join(root, name)
		write(t, p.V1[name], files)
	}
	want := Stats{
		CPUUsageNano:    known(1234567),
		MemoryUsage:     known(10485760),
		WorkingSet:      known(0), // never negative
		RSS:             known(4194304),
		Cache:           known(21),
		MappedFile:      known(22),
		ActiveFile:      known(23),
		InactiveFile:    known(99999999),
		PageFaults:      known(11),
		MajorPageFaults: known(2),
		SwapUsage:       known(4096),
		SwapLimit:       known(10485760),
	}
	if got := readStats(t, p); !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if n, err := OOMKills(p); n != 3 || err != nil {
		t.Errorf("oom kills %d, %v", n, err)
	}
	if n := MemoryHits(p); n != 4 {
		t.Errorf("%d memory hits", n)
	}
	if io := test.Value(ReadDetail(p))(t).IO; !reflect.DeepEqual(io, []DeviceIO{{"254:0", 4096, 8192, 1, 2}}) {
		t.Errorf("io %+v", io)
	}
}

func TestOOMKillsAndIOUnified(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, unifiedFiles)
	if n, err := OOMKills(Paths{Unified: dir}); n != 2 || err != nil {
		t.Errorf("oom kills %d, %v", n, err)
	}
	if n := MemoryHits(Paths{Unified: dir}); n != 5 { // from memory.events.local, which excludes child cgroups
		t.Errorf("%d memory hits", n)
	}
	io := test.Value(ReadDetail(Paths{Unified: dir}))(t).IO
	if want := []DeviceIO{{"254:0", 4096, 8192, 1, 2}, {"254:1", 1, 2, 3, 4}}; !reflect.DeepEqual(io, want) {
		t.Errorf("io %+v", io)
	}
}

func TestGoneCgroup(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "gone")
	for _, p := range []Paths{{}, {Unified: missing}, {V1: map[string]string{"memory": missing, "cpuacct": missing, "blkio": missing}}} {
		test.Is(t, test.Err(ReadStats(p)), errdefs.IsNotFound, "%+v", p)
		if n, err := OOMKills(p); n != 0 || err != nil || MemoryHits(p) != 0 {
			t.Errorf("%+v: %d, %v", p, n, err)
		}
	}
}

func FuzzParsers(f *testing.F) {
	for _, text := range unifiedFiles {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var rss Value
		fields(text, fieldTarget{"anon", &rss})
		if !rss.Known && rss.N != 0 {
			t.Errorf("%+v is not known", rss)
		}
		parsePressure(text)
		table := deviceTable{}
		table.addUnified(text)
		table.addV1(text, "rbytes", "wbytes")
		for _, io := range table.sorted() {
			if io.Device == "" {
				t.Error("a device without a name")
			}
		}
	})
}
