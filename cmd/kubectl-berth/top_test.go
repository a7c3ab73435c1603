package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-cri/berth/cmd/internal/screen"
	"github.com/berth-cri/berth/pkg/cluster"
)

var update = flag.Bool("update", false, "write the golden files")

var topAt = time.Date(2026, 11, 26, 3, 4, 5, 0, time.Local)

// counted is what a kubelet counted: calls that took half a second at most, a second, and
// longer than that.
func counted(half, one, longer float64) cluster.Durations {
	return cluster.Durations{Count: half + one + longer, Within: map[float64]float64{0.5: half, 1: half + one}}
}

// topAfter is a sample; a kubelet that counted n times as much as at first.
func topAfter(d time.Duration, n float64) topSample {
	handlers := func(names ...string) (all []cluster.NodeHandler) {
		for _, name := range names {
			all = append(all, cluster.NodeHandler{Name: name})
		}
		return all
	}
	return topSample{
		at: topAt.Add(d), host: "https://cluster.example:6443",
		nodes: []cluster.Node{
			{Name: "a", Ready: true, Reports: true, Handlers: handlers("", "gvisor", "runc")},
			{Name: "b", Ready: true, Cordoned: true, Reports: true, Handlers: handlers("", "runc"), Gaps: []cluster.Gap{{Handler: "gvisor", Nodes: 1, Classes: []string{"sandboxed"}, Labelled: true}}},
			{Name: "c", Reports: true, Handlers: handlers("", "kata")},
			{Name: "d", Ready: true},
		},
		pods: []placed{{"a", "", false}, {"a", "gvisor", false}, {"b", "", false}, {"", "kata", true}},
		counts: map[string]cluster.Counts{
			"a": {
				Sandboxes: map[string]cluster.Durations{"": counted(95*n, 5*n, 0), "gvisor": counted(0, 9*n, n)},
				Failed:    map[string]float64{"gvisor": n},
				Calls:     map[string]cluster.Durations{"run_podsandbox": counted(90*n, 10*n, 0), "create_container": counted(10*n, 0, 0)},
			},
			"b": {Sandboxes: map[string]cluster.Durations{"": counted(10, 0, 0)}, Calls: map[string]cluster.Durations{"run_podsandbox": counted(10, 0, 0)}},
		},
		uncounted: map[string]string{"c": `nodes "c" is forbidden`, "d": `nodes "d" is forbidden`},
	}
}

func TestTopPage(t *testing.T) {
	for name, c := range map[string]struct {
		samples []topSample
		width   int
	}{
		"nothing": {nil, 80},
		"first":   {[]topSample{topAfter(0, 1)}, 0},
		"later":   {[]topSample{topAfter(-5*time.Minute, 1), topAfter(-2*time.Minute, 3), topAfter(-time.Minute, 4), topAfter(-30*time.Second, 4.5), topAfter(0, 5)}, 100},
		"soon":    {[]topSample{topAfter(-10*time.Second, 1), topAfter(0, 1.1)}, 48},
	} {
		t.Run(name, func(t *testing.T) {
			p := topPage(c.samples, topAt, c.width)
			var b strings.Builder
			for _, l := range append(append([]screen.Line{}, p.Top...), p.Body...) {
				fmt.Fprintf(&b, "%d %s\n", l.Kind, l.Text)
			}
			got, path := b.String(), filepath.Join("testdata", "top", name+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil { //nolint:gosec // a file of the sources
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil || got != string(want) {
				t.Errorf("%v; got\n%s\nwant\n%s", err, got, want)
			}
		})
	}
}

// A kubelet that was restarted has counted less than before.
func TestTopAfterARestart(t *testing.T) {
	s := told([]topSample{topAfter(-time.Minute, 9), topAfter(0, 2)})
	if got := s.rate(cluster.Counts.Starts, []string{"a"}); got != "220" {
		t.Errorf("%s starts in a minute, and 220 since the restart in it", got)
	}
	if got := s.rate(cluster.Counts.Starts, []string{"c", "d"}); got != "-" {
		t.Errorf("%s starts of nodes that nobody counted", got)
	}
}

// However long the time between looks is, there are two to compare.
func TestTopKeepsTwo(t *testing.T) {
	for every, want := range map[time.Duration]int{time.Second: 601, 10 * time.Second: 61, 10 * time.Minute: 2, 11 * time.Minute: 2, time.Hour: 2} {
		if got := (&server{}).topSource(labels.Everything(), every).Keep; got != want {
			t.Errorf("of looks every %s it keeps %d, want %d", every, got, want)
		}
	}
}

// A node that was counted only once has said nothing of the time that is shown: what it
// counted is since its kubelet's start.
func TestTopOfANodeCountedOnce(t *testing.T) {
	first, last := topAfter(-time.Minute, 1), topAfter(0, 1)
	delete(first.counts, "b")
	last.counts["b"].Calls["run_podsandbox"] = counted(0, 0, 1000)
	last.counts["b"].Sandboxes[""] = counted(0, 0, 1000)
	sandboxes := func(c cluster.Counts) cluster.Durations { return c.Calls["run_podsandbox"] }
	s := told([]topSample{first, last})
	if got := s.quantile(sandboxes, s.everywhere()); got != "-" {
		t.Errorf("nothing was started since then, and p95 is %s", got)
	}
	if got := told([]topSample{last}).quantile(sandboxes, []string{"b"}); got != ">1.00s" {
		t.Errorf("p95 since the kubelet's start is %s", got)
	}
}
