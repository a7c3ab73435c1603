package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// report is the result of the benchmark.
type report struct {
	Machine  machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Runs     int               `json:"runs"`
	Fleets   int               `json:"fleet_rounds"`
	Pods     int               `json:"pods"`
	Handlers []handlerReport   `json:"handlers"`
	// Restored is only for berth.
	Restored []restoreEntry `json:"restored,omitempty"`
}

// machine is the machine of the measurement. With a high load, times are less reliable.
type machine struct {
	Kernel     string `json:"kernel"`
	CPUs       int    `json:"cpus"`
	LoadBefore string `json:"load_before"`
	LoadAfter  string `json:"load_after"`
}

type handlerReport struct {
	Handler string  `json:"handler"`
	Numbers []entry `json:"numbers"`
}

// entry is one metric of both peers.
type entry struct {
	Key        string               `json:"key"`
	Name       string               `json:"name"`
	Unit       string               `json:"unit,omitempty"`
	Berth      *float64             `json:"berth,omitempty"`
	Containerd *float64             `json:"containerd,omitempty"`
	Ratio      *float64             `json:"ratio,omitempty"` // berth ÷ containerd
	Samples    map[string][]float64 `json:"samples"`
}

func newReport(t testbed.T, o options, peers []*peer) report {
	r := report{
		Machine:  machine{Kernel: kernel(), CPUs: runtime.NumCPU(), LoadBefore: load()},
		Versions: map[string]string{}, Runs: o.runs, Fleets: o.fleetRounds(), Pods: o.pods,
	}
	for _, p := range peers {
		r.version(t, p)
	}
	for _, handler := range o.handlers {
		r.Versions[handler] = versionOf(testbed.Part(t, handler))
	}
	return r
}

// version records the version of a peer.
func (r *report) version(t testbed.T, p *peer) {
	version, err := p.Client.RuntimeServiceClient.Version(t.Context(), &runtimeapi.VersionRequest{})
	testbed.Mustf(t, err, "get the version of %s", p.name)
	r.Versions[p.name] = version.GetRuntimeVersion()
}

func versionOf(binary string) string {
	output, err := exec.Command(binary, "--version").Output()
	if err != nil {
		return "?"
	}
	first, _, _ := strings.Cut(string(output), "\n")
	_, version, _ := strings.Cut(first, "version ")
	return version
}

func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "?"
	}
	return unix.ByteSliceToString(name.Release[:])
}

// load is the load average of the last minute.
func load() string {
	body, _ := os.ReadFile("/proc/loadavg")
	last, _, _ := strings.Cut(string(body), " ")
	return last
}

func (r *report) finish() { r.Machine.LoadAfter = load() }

// add adds a handler's numbers; metrics without samples are left out.
func (r *report) add(handler string, metrics []metric, all samples) {
	h := handlerReport{Handler: handler}
	for _, m := range metrics {
		by := all[m.key]
		if len(by) == 0 {
			continue
		}
		e := entry{Key: m.key, Name: m.name, Unit: m.unit, Samples: by}
		if values := by[berth]; len(values) > 0 {
			v := median(values)
			e.Berth = &v
		}
		if values := by[containerd]; len(values) > 0 {
			v := median(values)
			e.Containerd = &v
		}
		if e.Berth != nil && e.Containerd != nil && *e.Containerd != 0 {
			v := *e.Berth / *e.Containerd
			e.Ratio = &v
		}
		h.Numbers = append(h.Numbers, e)
	}
	r.Handlers = append(r.Handlers, h)
}

// write prints the report, as a table or as JSON.
func (r report) write(out io.Writer, asJSON bool) error {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	for _, h := range r.Handlers {
		if len(h.Numbers) == 0 {
			continue
		}
		if err := r.table(out, h); err != nil {
			return err
		}
	}
	if len(r.Restored) == 0 {
		return nil
	}
	return r.restoreTable(out)
}

func (r report) table(out io.Writer, h handlerReport) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### %s\n\n", strings.TrimSpace(h.Handler+" "+r.Versions[h.Handler]))
	fmt.Fprintf(&b, "berth %s, containerd %s; Linux %s, %d CPUs, load %s before and %s after; %d rounds, %d of them with %d pods.\n\n",
		r.Versions[berth], r.Versions[containerd], r.Machine.Kernel, r.Machine.CPUs,
		r.Machine.LoadBefore, r.Machine.LoadAfter, r.Runs, r.Fleets, r.Pods)
	b.WriteString("| | berth | containerd | berth ÷ containerd |\n|---|--:|--:|--:|\n")
	for _, e := range h.Numbers {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", strings.TrimSuffix(e.Name+", "+e.Unit, ", "), short(e.Berth), short(e.Containerd), ratio(e.Ratio))
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// short prints a number with about three digits, or "–" for nil.
func short(v *float64) string {
	switch {
	case v == nil:
		return "–"
	case *v >= 100:
		return fmt.Sprintf("%.0f", *v)
	case *v >= 10:
		return fmt.Sprintf("%.1f", *v)
	default:
		return fmt.Sprintf("%.2f", *v)
	}
}

func ratio(v *float64) string {
	if v == nil {
		return "–"
	}
	return fmt.Sprintf("%.2f", *v)
}
