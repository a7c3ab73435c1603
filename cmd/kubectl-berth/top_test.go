package main

import (
	"compress/gzip"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"

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
		pods: map[onNode]int{{"a", "", false}: 1, {"a", "gvisor", false}: 1, {"b", "", false}: 1, {"", "kata", true}: 1},
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
		"none":    {[]topSample{{at: topAt, host: "https://cluster.example:6443", all: 3}}, 80},
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

// Who gives --request-timeout has the last word, also with kubectl's 0, which is no bound.
func TestTopOwnTimeout(t *testing.T) {
	for given, want := range map[string]time.Duration{"": topRequest, "--request-timeout=0": 0, "--request-timeout=3s": 0} {
		top, _, err := newRoot(genericiooptions.NewTestIOStreamsDiscard()).Find([]string{"top"})
		if err != nil {
			t.Fatal(err)
		}
		if err := top.ParseFlags(strings.Fields(given)); err != nil {
			t.Fatal(err)
		}
		if got := ownTimeout(top); got != want {
			t.Errorf("%q: %s", given, got)
		}
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

// What is kept of a cluster that is looked at for long is enough to compare with, and little:
// it may have thousands of nodes.
func TestTopKeepsLittle(t *testing.T) {
	for every, most := range map[time.Duration]int{time.Second: 20, 10 * time.Second: 20, 30 * time.Second: 14, 10 * time.Minute: 2, 11 * time.Minute: 2, time.Hour: 2} {
		var kept []topSample
		for n := range 2000 {
			one := topAfter(time.Duration(n)*every, 1)
			kept = thinned(append(kept, one))
			if last := kept[len(kept)-1]; len(kept) > most || len(last.pods) != len(one.pods) {
				t.Fatalf("every %s: of look %d it keeps %d, with %d pods of the last", every, n, len(kept), len(last.pods))
			}
			if n == 0 {
				continue
			}
			for _, s := range kept[:len(kept)-1] {
				if len(s.pods)+len(s.nodes) > 0 || len(s.counts) != len(one.counts) {
					t.Fatalf("every %s: it keeps pods or nodes of an old look: %+v", every, s)
				}
			}
			past := time.Duration(n) * every
			told := told(kept)
			if least := min(past, max(every, topWindow-olderStep)); told.covered < least {
				t.Fatalf("every %s: after %s p95 is of %s", every, past, told.covered)
			}
			if span := told.spans["a"]; past >= time.Minute && (span < time.Minute && every <= time.Minute || span > max(every, time.Minute)+max(every, recentStep)) {
				t.Fatalf("every %s: after %s rates are of %s", every, past, span)
			}
		}
	}
}

// A kubelet that answers with too much costs whoever asks it no more than a bounded part of it.
func TestTopBoundsWhatAKubeletSends(t *testing.T) {
	var sent atomic.Int64
	answers := map[string]http.HandlerFunc{
		"comment": func(w http.ResponseWriter, _ *http.Request) { flood(w, http.StatusOK, "# TYPE x gauge\n", &sent) },
		"refusal": func(w http.ResponseWriter, _ *http.Request) { flood(w, http.StatusBadGateway, "no\n", &sent) },
		"status": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"dial tcp 10.0.0.1:10250: connection refused","reason":"ServiceUnavailable","code":503}`)
		},
		"good": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "# TYPE up gauge\nup 1\n") },
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answers[strings.Split(r.URL.Path, "/")[4]](w, r)
	}))
	defer api.Close()
	s, err := clients(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	for node, want := range map[string]string{"comment": "it sends more than 8 MiB", "refusal": "it sends more than 8 MiB", "status": "connection refused", "good": ""} {
		sent.Store(0)
		if _, err := s.kubelet(t.Context(), node); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", node, err, want)
		}
		// What is read ahead, and what the two ends of the connection keep, is more than what is used.
		if n := sent.Load(); n > 16*mostMetrics {
			t.Errorf("%s: %d MiB were read", node, n>>20)
		}
	}
}

// A node that sends whoever asks for its metrics elsewhere does not get the credentials there.
func TestTopFollowsNoRedirect(t *testing.T) {
	var stolen atomic.Value
	evil := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen.Store(r.Header.Get("Authorization")) }))
	defer evil.Close()
	api := httptest.NewServer(http.RedirectHandler(evil.URL+"/metrics", http.StatusFound))
	defer api.Close()
	s, err := clients(&rest.Config{Host: api.URL, QPS: -1, BearerToken: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.kubelet(t.Context(), "evil"); err == nil || err.Error() != "get nodes/proxy: the answer is a redirect, which is not followed" {
		t.Errorf("got %v", err)
	}
	if got := stolen.Load(); got != nil {
		t.Errorf("another server got %q", got)
	}
}

// flood sends, compressed, as much as anybody takes, up to 512 MiB.
func flood(w http.ResponseWriter, status int, line string, sent *atomic.Int64) {
	w.Header().Set("Content-Encoding", "gzip")
	w.WriteHeader(status)
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed) // more takes longer than the limit on a busy machine
	if err != nil {
		return
	}
	for block := []byte(strings.Repeat(line, 64<<10)); sent.Load() < 512<<20; sent.Add(int64(len(block))) {
		if _, err := z.Write(block); err != nil {
			return
		}
	}
	_ = z.Close()
}

// Reasons that differ in the node's name or address are one, and few are shown.
func TestUncounted(t *testing.T) {
	s := topSample{uncounted: map[string]string{}}
	add := func(why string, names ...string) {
		for _, name := range names {
			s.nodes, s.uncounted[name] = append(s.nodes, cluster.Node{Name: name}), strings.ReplaceAll(why, "@", name)
		}
	}
	add(`an error on the server ("unknown") has prevented the request from succeeding (get nodes @)`, "node-1", "node-2", "node-3", "node-4")
	add("dial tcp 10.0.0.1:10250: refused", "a")
	add("dial tcp 10.0.0.2:10250: refused", "b")
	add("dial tcp [fe80::1]:10250: refused", "c")
	for _, name := range []string{"p", "q", "r"} {
		add("reason "+name, name)
	}
	var got []string
	for _, l := range uncounted(s) {
		got = append(got, l.Text)
	}
	want := []string{
		`4 kubelets not counted (node-1, node-2, node-3, …): an error on the server ("unknown") has prevented the request from succeeding (get nodes NODE)`,
		"3 kubelets not counted (a, b, c): dial tcp ADDRESS: refused",
		"1 kubelet not counted (p): reason p",
		"2 kubelets not counted for other reasons",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
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

// Pods are counted as they are read: no more of them than a page is there at a time.
func TestTopCountsPods(t *testing.T) {
	gone := false
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch at := r.URL.Query().Get("continue"); {
		case strings.HasSuffix(r.URL.Path, "/nodes"):
			fmt.Fprint(w, `{"kind":"NodeList","apiVersion":"v1","items":[{"metadata":{"name":"a"}}]}`)
		case strings.HasSuffix(r.URL.Path, "/runtimeclasses"):
			fmt.Fprint(w, `{"kind":"RuntimeClassList","apiVersion":"node.k8s.io/v1","items":[{"metadata":{"name":"sandboxed"},"handler":"kata"}]}`)
		case !strings.HasSuffix(r.URL.Path, "/pods"):
			http.NotFound(w, r)
		case at == "" && !gone:
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"continue":"x"},"items":[{"spec":{"nodeName":"a"}},{"spec":{"nodeName":"a","runtimeClassName":"sandboxed"}}]}`)
		case at != "": // the list is too old by now, and is begun anew
			gone = true
			w.WriteHeader(http.StatusGone)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}`)
		default:
			fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","items":[{"spec":{"nodeName":"a"}},{"spec":{"nodeName":"a"}},{"spec":{"runtimeClassName":"sandboxed"},"status":{"phase":"Pending"}},{"spec":{"nodeName":"a","runtimeClassName":"gone"}}]}`)
		}
	}))
	defer api.Close()
	s, err := clients(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	sample, err := s.topSample(t.Context(), labels.Everything())
	if want := map[onNode]int{{"a", "", false}: 2, {"", "kata", true}: 1}; err != nil || !maps.Equal(sample.pods, want) {
		t.Errorf("%v; got %v, want %v", err, sample.pods, want)
	}
}
