package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestEveryNumberOfBoth runs the smallest benchmark, and fails if it does not measure every
// number of berth and containerd: regressions of a missing number would go unnoticed.
func TestEveryNumberOfBoth(t *testing.T) {
	o := options{runs: 1, pods: 3, image: 20e6, polling: 2 * time.Second, handlers: []string{testbed.Runc}}
	r := compare(t, o)
	var b strings.Builder
	testbed.Must(t, r.write(&b, false))
	t.Log(b.String())
	if len(r.Handlers) != 1 || len(r.Handlers[0].Numbers) != len(metrics) {
		t.Fatalf("fewer than the %d numbers were measured", len(metrics))
	}
	for _, e := range r.Handlers[0].Numbers {
		if e.Berth == nil || e.Containerd == nil {
			t.Errorf("%q was measured for only one of berth and containerd", e.Key)
			continue
		}
		// These two can be 0 on a very fast or a very slow machine.
		if e.Key != "idle" && e.Key != "exit" && (*e.Berth <= 0 || *e.Containerd <= 0) {
			t.Errorf("%q is %v for berth and %v for containerd, want more than 0", e.Key, *e.Berth, *e.Containerd)
		}
	}
	for _, e := range r.Restored {
		if e.Value <= 0 || len(e.Samples) != 1 {
			t.Errorf("%q is %v, from the samples %v, want more than 0 from one sample", e.Key, e.Value, e.Samples)
		}
	}
	testbed.Same(t, len(r.Restored), len(restoreMetrics), "the number of metrics of restored pods is")
}

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   float64
	}{
		{nil, 0}, {[]float64{7}, 7}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 9, 1, 2}, 3},
	} {
		testbed.Same(t, median(c.values), c.want, "median of %v is", c.values)
	}
}

func TestWorkload(t *testing.T) {
	own := sleepFor(17)
	for cmdline, want := range map[string]string{
		"sleep\x00" + own + "\x00":         own,
		"sleep\x00" + own:                  own,
		"sleep\x002147483647\x00":          "", // a pause container
		"sleep\x0060\x00":                  "",
		"sleep\x00" + own + "\x001\x00":    "",
		"sh\x00-c\x00sleep " + own:         "",
		"berth-shim\x00serve\x00--dir":     "",
		"sleep\x00" + sleepFor(0) + "\x00": "",
	} {
		if got, ok := workload(cmdline); ok != (want != "") || ok && got != want {
			t.Errorf("%q: got %q, %t, want %q", cmdline, got, ok, want)
		}
	}
}

func TestReadingTheKernel(t *testing.T) {
	const rollup = "00400000-7ffd3b958000 ---p 00000000 00:00 0 [rollup]\nRss:    1608 kB\nPss:     259 kB\n" +
		"Pss_Anon: 112 kB\nAnonymous:      1024 kB\n"
	const stat = "4242 (a ) b (c) S 1 2 3 4 5 6 7 8 9 10 100 20 3 2 20 0 1 0 99\n"
	const page = "start_seconds_bucket{le=\"1\"} 3\nstart_seconds_sum 7.5\nstart_seconds_count 3\n" +
		"call_seconds_sum{type=\"run\"} 5\ncall_seconds_count{type=\"run\"} 2\ncall_seconds_count{type=\"stop\"} 9\n"
	mean := func(name, labels string) (float64, error) {
		t, err := parseTotal(page, name, labels)
		return t.mean(total{sum: 1, count: 1}), err
	}
	for name, c := range map[string]struct {
		read func() (float64, error)
		want float64
	}{
		"Pss":       {func() (float64, error) { return parseRollup(rollup, "Pss") }, 259},
		"Anonymous": {func() (float64, error) { return parseRollup(rollup, "Anonymous") }, 1024},
		"CPU":       {func() (float64, error) { return parseCPU(stat) }, 1.25},
		"busy": {func() (float64, error) {
			return parseBusy("cpu  100 20 300 4000 5000 60 7 8 9 10\ncpu0 1 2 3 4 5 6 7 8\n")
		}, 4.87},
		"mean":   {func() (float64, error) { return mean("start_seconds", "") }, 3.25},
		"labels": {func() (float64, error) { return mean("call_seconds", `{type="run"}`) }, 4},
	} {
		if got, err := c.read(); err != nil || got != c.want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, c.want)
		}
	}
	for name, read := range map[string]func() (float64, error){
		"no field":   func() (float64, error) { return parseRollup(rollup, "Swap") },
		"short stat": func() (float64, error) { return parseCPU("1 (x) S 1 2") },
		"no CPU":     func() (float64, error) { return parseBusy("processes 4711\n") },
		"no metric":  func() (float64, error) { return mean("stop_seconds", "") },
	} {
		if got, err := read(); err == nil {
			t.Errorf("%s: read as %v", name, got)
		}
	}
}

func TestCountCalls(t *testing.T) {
	const trace = `101 fdatasync(7 <unfinished ...>
102 fsync(12) = 0
101 <... fdatasync resumed>) = 0
103 clone3({flags=CLONE_VM}, 88) = 104
103 +++ exited with 0 +++
2 syncfs(3)                         = 0
104 clone(child_stack=NULL, flags=SIGCHLD) = 105
104 sync()  = 0
105 fsyncing(3) = 0
`
	testbed.Same(t, countCalls(trace, flushCalls), 4, "the number of flushes is")
	testbed.Same(t, countCalls(trace, forkCalls), 2, "the number of forks is")
}

// TestDisk flushes a file, and expects a flush of the disk each time, none faster than the disk may
// be.
func TestDisk(t *testing.T) {
	testbed.NeedRoot(t)
	if _, err := os.Stat("/dev/fuse"); err != nil {
		testbed.Missing(t, "the kernel has no FUSE: %v", err)
	}
	const flush, times = 2 * time.Millisecond, 20
	d := newDisk(t, newBacking(t), flush)
	file, err := os.Create(filepath.Join(d.dir, "file"))
	testbed.Must(t, err)
	before, begin := d.flushes(t), time.Now()
	for range times {
		_, err := file.WriteString("x")
		testbed.Must(t, err)
		testbed.Must(t, file.Sync())
	}
	if took := time.Since(begin); took < times*flush {
		t.Errorf("%d flushes took %v, want at least %v", times, took, times*flush)
	}
	if n := d.flushes(t) - before; n < times {
		t.Errorf("the disk counted %v flushes, want at least %d", n, times)
	}
	testbed.Must(t, file.Close())
}

func TestReport(t *testing.T) {
	s := samples{}
	s.add("ready", berth, 60)
	s.add("ready", berth, 80)
	s.add("ready", containerd, 140)
	s.add("exit", berth, 1.234)
	s.add("forks", berth, 65)
	s.add("forks", containerd, 130)
	r := report{Versions: map[string]string{berth: "1.0.0", containerd: "v2", "runc": "1.5"}, Runs: 2, Pods: 40}
	r.add("runc", metrics, s)
	var table, encoded strings.Builder
	testbed.Must(t, r.write(&table, false))
	for _, want := range []string{
		"### runc 1.5\n", "berth 1.0.0, containerd v2",
		"| pod ready (run + create + start), ms | 70.0 | 140 | 0.50 |\n",
		"| process exit → STOPPED event, ms | 1.23 | – | – |\n",
		"| processes and threads started per pod life | 65.0 | 130 | 0.50 |\n",
	} {
		testbed.Contains(t, table.String(), want, "the table")
	}
	if strings.Contains(table.String(), "recovery") || strings.Contains(table.String(), "kill -9") {
		t.Errorf("the table has rows that were not measured:\n%s", &table)
	}
	testbed.Must(t, r.write(&encoded, true))
	var back report
	testbed.Must(t, json.Unmarshal([]byte(encoded.String()), &back))
	if n := back.Handlers[0].Numbers[0]; n.Key != "ready" || *n.Ratio != 0.5 || len(n.Samples[berth]) != 2 {
		t.Errorf("JSON has %+v", n)
	}
}
