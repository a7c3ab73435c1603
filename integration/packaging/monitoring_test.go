package packaging

import (
	"bufio"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/berth-cri/berth/integration/testbed"
)

const (
	rulesFile     = "../../contrib/prometheus/berth.rules.yaml"
	dashboardFile = "../../contrib/grafana/berth.json"
)

// metrics returns the metrics in docs/metrics.md with their labels. A test of the daemon compares
// that page with the code.
func metrics(t *testing.T) map[string][]string {
	t.Helper()
	f, err := os.Open("../../docs/metrics.md")
	testbed.Must(t, err)
	defer f.Close()
	// Metrics of the process from Prometheus's Go client.
	known := map[string][]string{"process_start_time_seconds": nil, "process_resident_memory_bytes": nil, "process_cpu_seconds_total": nil}
	row := regexp.MustCompile("^\\| `(berth_[a-z_]+)` \\| ([a-z]+) \\| ([^|]*) \\|")
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := row.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		has := regexp.MustCompile("[a-z_]+").FindAllString(m[3], -1)
		if m[2] != "histogram" {
			known[m[1]] = has
			continue
		}
		known[m[1]+"_sum"], known[m[1]+"_count"] = has, has
		known[m[1]+"_bucket"] = append(slices.Clone(has), "le")
	}
	if len(known) < 8 {
		t.Fatalf("found too few metrics in docs/metrics.md: %v", known)
	}
	return known
}

// controllers returns the metrics of berth-controller from the docs. A test of the command compares
// that table with the code.
func controllers(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/runtimeclass-reference.md")
	testbed.Must(t, err)
	var all []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(berth_controller_[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	if len(all) == 0 {
		t.Fatal("docs/runtimeclass-reference.md has no metrics of the controller")
	}
	return all
}

// scraped are the labels that every series gets from Prometheus.
var scraped = []string{"__name__", "instance", "job"}

// check fails if a query has an unknown metric or label, and notes in used which metrics it has.
func check(t *testing.T, where, query string, known map[string][]string, used map[string]bool) {
	t.Helper()
	// Grafana replaces these variables.
	query = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*", "$handler", ".*").Replace(query)
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v", where, err)
		return
	}
	labelsHere := slices.Clone(scraped)
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		has, there := known[v.Name]
		if !there {
			t.Errorf("%s: metric %s does not exist", where, v.Name)
		}
		used[v.Name] = true
		labelsHere = append(labelsHere, has...)
		for _, m := range v.LabelMatchers {
			if !slices.Contains(has, m.Name) && !slices.Contains(scraped, m.Name) {
				t.Errorf("%s: %s has no label %s", where, v.Name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !slices.Contains(labelsHere, l) {
					t.Errorf("%s: no metric of the query has the label %s", where, l)
				}
			}
		}
		return nil
	})
}

func TestAlertsAreAboutMetricsThatExist(t *testing.T) {
	data, err := os.ReadFile(rulesFile)
	testbed.Must(t, err)
	var file struct {
		Groups []struct {
			Name  string `json:"name"`
			Rules []struct {
				Alert       string            `json:"alert"`
				Expr        string            `json:"expr"`
				For         string            `json:"for"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	testbed.Must(t, yaml.UnmarshalStrict(data, &file))
	known, count := metrics(t), 0
	for _, name := range controllers(t) {
		known[name] = nil
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			count++
			check(t, r.Alert, r.Expr, known, map[string]bool{})
			if r.Alert == "" || r.Labels["severity"] == "" || r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%q lacks its name, severity, summary or description", r.Alert)
			}
		}
	}
	if count == 0 {
		t.Error("the file has no alerts")
	}
}

// The alert BerthNoController must also fire if no controller is scraped. A sum over no series has
// no value, not 0, so the query needs a second part for that.
func TestNoControllerIsNoticed(t *testing.T) {
	data, err := os.ReadFile(rulesFile)
	testbed.Must(t, err)
	_, rule, there := strings.Cut(string(data), "alert: BerthNoController\n")
	_, rule, _ = strings.Cut(rule, "expr: ")
	query, _, _ := strings.Cut(rule, "\n")
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if !there || err != nil {
		t.Fatalf("find the alert and parse its query: found: %v, %v", there, err)
	}
	noticed := false
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		if or, is := n.(*parser.BinaryExpr); is && or.Op == parser.LOR && strings.Contains(or.RHS.String(), "count_over_time") {
			noticed = true
		}
		return nil
	})
	if !noticed {
		t.Errorf("without series of a controller the query has no value: %s", query)
	}
}

// panel is a panel of Grafana; a row contains panels.
type panel struct {
	ID      int     `json:"id"`
	Title   string  `json:"title"`
	Type    string  `json:"type"`
	Panels  []panel `json:"panels"`
	Targets []struct {
		Expr string `json:"expr"`
	} `json:"targets"`
}

// The dashboard shows every metric of berth, and has no unknown metrics.
func TestDashboardShowsTheMetricsThatExist(t *testing.T) {
	data, err := os.ReadFile(dashboardFile)
	testbed.Must(t, err)
	var dashboard struct {
		Title  string  `json:"title"`
		UID    string  `json:"uid"`
		Panels []panel `json:"panels"`
	}
	testbed.Must(t, json.Unmarshal(data, &dashboard))
	known, used, ids := metrics(t), map[string]bool{}, map[int]bool{}
	var walk func([]panel)
	walk = func(panels []panel) {
		for _, p := range panels {
			if ids[p.ID] {
				t.Errorf("panel %q has the same ID as another", p.Title)
			}
			ids[p.ID] = true
			if p.Type != "row" && p.Type != "text" && len(p.Targets) == 0 {
				t.Errorf("panel %q has no query", p.Title)
			}
			for _, target := range p.Targets {
				check(t, p.Title, target.Expr, known, used)
			}
			walk(p.Panels)
		}
	}
	walk(dashboard.Panels)
	if dashboard.Title == "" || dashboard.UID == "" {
		t.Error("the dashboard has no title or no uid")
	}
	for name := range known {
		base, of := strings.CutSuffix(name, "_bucket")
		if !strings.HasPrefix(name, "berth_") || strings.HasSuffix(name, "_sum") || strings.HasSuffix(name, "_count") {
			continue
		}
		if !used[name] && (!of || !used[base+"_count"]) {
			t.Errorf("no panel shows %s", name)
		}
	}
}
