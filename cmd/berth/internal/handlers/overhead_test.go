package handlers

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/cmd/berth/internal/cli"
	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func estimateOf(memory, cpu uint64) *adminv1.OverheadEstimate {
	e := &adminv1.OverheadEstimate{
		Pods: 3, MeasuredAt: timestamppb.New(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)),
		MemoryBytes: &adminv1.OverheadDistribution{P50: memory, P95: memory, Max: memory},
	}
	if cpu > 0 {
		e.CpuPods = 3
		e.CpuNanocores = &adminv1.OverheadDistribution{P50: cpu, P95: cpu, Max: cpu}
	}
	return e
}

func TestPodFixed(t *testing.T) {
	const line, field = "# p95 of handler kata, pods measured: 3, 2026-01-02T03:04:05Z", "\noverhead:\n  podFixed:"
	const head, noCPU = line + field, line + "; their CPU use is not measured yet" + field
	for want, e := range map[string]*adminv1.OverheadEstimate{
		head + "\n    cpu: 3m\n    memory: 2Mi\n": estimateOf(1<<20+1, 2_000_001),
		noCPU + "\n    memory: 1Mi\n":             estimateOf(1<<20, 0),
		noCPU + " {}\n":                           estimateOf(0, 0),
	} {
		var b bytes.Buffer
		if err := podFixed(&b, "kata", &adminv1.Overhead{Live: e}); err != nil || b.String() != want {
			t.Errorf("%q, %v; want %q", b.String(), err, want)
		}
	}
	var b bytes.Buffer
	if err := podFixed(&b, "kata", &adminv1.Overhead{NoLiveReason: "it has no pods"}); err == nil || b.Len() > 0 || !strings.Contains(err.Error(), "no data: it has no pods") {
		t.Errorf("without data: %q, %v", b.String(), err)
	}
}

func TestMeasurementOf(t *testing.T) {
	for want, e := range map[string]*adminv1.OverheadEstimate{
		`{"pods":3,"memory":{"p50":"5","p95":"5","max":"5"},"cpu":{"p50":"7n","p95":"7n","max":"7n"}}`: estimateOf(5, 7),
		`{"pods":3,"memory":{"p50":"0","p95":"0","max":"0"},"cpu":{"p50":"0","p95":"0","max":"0","pods":2}}`: {
			Pods: 3, CpuPods: 2, MemoryBytes: &adminv1.OverheadDistribution{}, CpuNanocores: &adminv1.OverheadDistribution{},
		},
	} {
		test.Equal(t, "JSON", string(test.Value(json.Marshal(measurementOf(e)))(t)), want)
	}
	if text, err := json.Marshal(measurementOf(estimateOf(5, 0))); err != nil || strings.Contains(string(text), "cpu") {
		t.Errorf("the JSON has CPU use that is not known: %s, %v", text, err)
	}
}

func TestShownOverhead(t *testing.T) {
	var b bytes.Buffer
	o := &adminv1.Overhead{Live: estimateOf(7<<20, 1_500_000), DeclaredMemoryBytes: 4 << 20, DeclaredCpuMillicores: 250, Warning: "too much"}
	o.Live.CpuPods = 2
	test.Must(t, showOverhead(&b, &cli.Remote{}, "crun", o))
	for _, want := range []string{"crun     3, CPU 2", "7.0Mi", "1.50m", "4.0Mi 250m, exceeded"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the output lacks %q:\n%s", want, b.String())
		}
	}
	b.Reset()
	if err := showOverhead(&b, &cli.Remote{}, "kata", &adminv1.Overhead{NoLiveReason: "it has no pods"}); err != nil || b.String() != "no data: it has no pods\n" {
		t.Errorf("without data: %q, %v", b.String(), err)
	}
}

func TestDeclared(t *testing.T) {
	for want, o := range map[string]*adminv1.Overhead{
		"-": {}, "4.0Mi": {DeclaredMemoryBytes: 4 << 20}, "5m": {DeclaredCpuMillicores: 5}, "5m, exceeded": {DeclaredCpuMillicores: 5, Warning: "too much"},
	} {
		if got := declaredCell(o); got != want {
			t.Errorf("the cell is %q, want %q", got, want)
		}
	}
}
