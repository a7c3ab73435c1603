package daemon_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// scrape gets the metrics as Prometheus does.
func (b *bed) scrape(t *testing.T) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", strings.TrimPrefix(b.config.Metrics.Address, "unix://"))
		},
	}}
	req := test.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, "http://berth/metrics", http.NoBody))(t)
	resp, err := client.Do(req)
	test.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v", resp.Status, err)
	}
	return string(text)
}

// busy starts a daemon and makes calls that give each metric a value.
func (b *bed) busy(t *testing.T) {
	t.Helper()
	b.started(t)
	for range 2 {
		test.Must(t, test.Err(b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "gvisor"})))
	}
	if _, err := b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{RuntimeHandler: "from a client"}); err == nil {
		t.Fatal("RunPodSandbox with an unknown handler succeeded")
	}
}

func TestMetricsOfTheNode(t *testing.T) {
	b := newBed(t)
	b.busy(t)
	text := b.scrape(t)
	for _, want := range []string{
		`berth_build_info{revision="abc",version="1.2.3"} 1`,
		`berth_handler_ready{handler="gvisor"} 1`,
		`berth_handler_ready{handler="kata"} 0`,
		`berth_handler_ready{handler="runc"} 1`,
		`berth_sandboxes{handler="gvisor"} 2`,
		`berth_handler_overhead_pods{handler="gvisor"} 2`,
		`berth_handler_overhead_pods{handler="runc"} 0`,
		`berth_handler_overhead_memory_bytes{handler="gvisor",quantile="0.95"} 2.097152e+07`,
		`berth_handler_overhead_declared_memory_bytes{handler="gvisor"} 1.048576e+07`,
		`berth_handler_overhead_declared_cpu_cores{handler="gvisor"} 0.25`,
		`berth_handler_overhead_exceeds_declared{handler="gvisor"} 1`,
		`berth_handler_overhead_exceeds_declared{handler="runc"} 0`,
		`berth_sandboxes{handler="runc"} 0`,
		`berth_starts_running{handler="gvisor"} 0`,
		`berth_starts_queued{handler="kata"} 0`,
		`berth_starts_refused_total{handler="gvisor",limit="max_pods"} 0`,
		`berth_rpc_duration_seconds_count{binary="stable",code="OK",handler="gvisor",rpc="RunPodSandbox"} 2`,
		`berth_rpc_duration_seconds_count{binary="",code="InvalidArgument",handler="",rpc="RunPodSandbox"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for _, unwanted := range []string{`berth_handler_overhead_memory_bytes{handler="runc"`, `berth_handler_overhead_declared_memory_bytes{handler="runc"`} {
		if strings.Contains(text, unwanted) {
			t.Errorf("without pods, the metrics have %s", unwanted)
		}
	}
	if strings.Contains(text, "from a client") {
		t.Error("text of a client became a label")
	}
}

func TestWithoutAnAddressNothingIsCounted(t *testing.T) {
	b := newBed(t)
	b.config.Metrics.Address = ""
	b.started(t)
	test.Check(t, b.version(t))
}

// family is a metric as docs/metrics.md describes it.
type family struct{ kind, labels, help string }

// exposed returns berth's own metrics.
func exposed(text string) map[string]family {
	all := map[string]family{}
	for line := range strings.Lines(text) {
		word := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(word) < 4 || word[0] != "#" || !strings.HasPrefix(word[2], "berth_") {
			continue
		}
		f := all[word[2]]
		if word[1] == "HELP" {
			f.help = word[3]
		} else {
			f.kind = word[3]
		}
		f.labels = labelsOf(text, word[2])
		all[word[2]] = f
	}
	return all
}

// labelsOf returns the names of a metric's labels, in order.
func labelsOf(text, metric string) string {
	series := regexp.MustCompile(`(?m)^` + metric + `(?:_count)?\{(.*)\} `).FindStringSubmatch(text)
	if series == nil {
		return ""
	}
	var names []string
	for _, label := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(series[1], -1) {
		names = append(names, "`"+label[1]+"`")
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// documented returns the metrics in the tables of docs/metrics.md.
func documented(t *testing.T) map[string]family {
	t.Helper()
	text := test.Value(os.ReadFile("../../docs/metrics.md"))(t)
	all := map[string]family{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(berth_\\w+)` \\| (\\w+) \\| (.*?) \\| (.*) \\|$").FindAllStringSubmatch(string(text), -1) {
		labels := strings.Split(row[3], ", ")
		slices.Sort(labels)
		all[row[1]] = family{kind: row[2], labels: strings.Join(labels, ", "), help: row[4]}
	}
	return all
}

func TestEveryMetricIsDocumented(t *testing.T) {
	b := newBed(t)
	b.leadTo(t, newBed(t))
	b.config.NodeLabels = config.NodeLabels{File: filepath.Join(t.TempDir(), "berth"), Lifetime: time.Hour}
	b.busy(t)
	test.Check(t, b.asAgent(t))
	var text string
	late := func(metric string) bool { return !strings.Contains(text, "\n"+metric) }
	test.Eventually(t, "metrics that are measured later exist", func() bool {
		text = b.scrape(t)
		return !slices.ContainsFunc([]string{"berth_backend_list_age_seconds{", "berth_node_labels_current ", "berth_handler_overhead_cpu_cores{"}, late)
	})
	got, want := exposed(text), documented(t)
	if len(got) == 0 {
		t.Fatal("nothing is exposed")
	}
	for name, f := range got {
		if want[name] != f {
			t.Errorf("docs/metrics.md should have: | `%s` | %s | %s | %s |", name, f.kind, f.labels, f.help)
		}
	}
	for name := range want {
		if _, ok := got[name]; !ok {
			t.Errorf("docs/metrics.md has %s, which the daemon does not expose", name)
		}
	}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "# TYPE "); ok && !regexp.MustCompile(`^(berth|go|process)_`).MatchString(name) {
			t.Errorf("docs/metrics.md does not describe %s", strings.TrimSpace(name))
		}
	}
}

// Calls about pods on a candidate have another label than those about pods on the
// handler's own binary.
func TestMetricsOfBothBinaries(t *testing.T) {
	b := newBed(t)
	b.config.Runtimes[1].Candidate = &handler.Candidate{Path: "/next", Percent: 100}
	b.started(t)
	for _, name := range []string{"runc", "gvisor"} {
		resp := test.Value(b.client(t).RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{
			RuntimeHandler: name, Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Uid: "u-" + name}},
		}))(t)
		test.Must(t, test.Err(b.client(t).StopPodSandbox(t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: resp.GetPodSandboxId()})))
	}
	text := b.scrape(t)
	for name, binary := range map[string]string{"runc": "candidate", "gvisor": "stable"} {
		for _, rpc := range []string{"RunPodSandbox", "StopPodSandbox"} {
			want := fmt.Sprintf(`berth_rpc_duration_seconds_count{binary=%q,code="OK",handler=%q,rpc=%q} 1`, binary, name, rpc)
			if !strings.Contains(text, want+"\n") {
				t.Errorf("the metrics lack %s", want)
			}
		}
	}
}
