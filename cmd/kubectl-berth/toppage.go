package main

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/berth-cri/berth/cmd/internal/output"
	"github.com/berth-cri/berth/cmd/internal/screen"
	"github.com/berth-cri/berth/pkg/cluster"
)

// topPage is what there is to see of a cluster. Pure.
func topPage(samples []topSample, now time.Time, width int) screen.Page {
	if len(samples) == 0 {
		return screen.Page{Top: []screen.Line{{Text: "cluster", Kind: screen.Title}}}
	}
	last := samples[len(samples)-1]
	t := told(samples)
	ready, total := 0, 0
	for _, n := range last.pods {
		total += n
	}
	for _, n := range last.nodes {
		if n.Ready {
			ready++
		}
	}
	p := screen.Page{Top: []screen.Line{
		{Text: fmt.Sprintf("cluster %s, at %s", last.host, now.Format(time.TimeOnly)), Kind: screen.Title},
		{Text: fmt.Sprintf("%d of %s ready, %s, %s starts per minute", ready, output.Count(len(last.nodes), "node", "nodes"), output.Pods(total), t.rate(cluster.Counts.Starts, t.everywhere()))},
	}}
	if len(last.nodes) == 0 {
		p.Top = append(p.Top, screen.Line{Text: fmt.Sprintf("no nodes match; nodes in the cluster: %d", last.all), Kind: screen.Warn})
	}
	p.Body = append(uncounted(last), screen.Line{})
	p.Body = append(p.Body, t.handlers(width)...)
	p.Body = append(p.Body, screen.Line{}, screen.Line{Text: "p95 of the CRI's calls, by node, " + t.span(), Kind: screen.Dim})
	p.Body = append(p.Body, t.nodes(width)...)
	return p
}

// mostReasons is how many reasons are told why kubelets were not counted.
const mostReasons = 3

// address is an IP address with a port, which is of one node only.
var address = regexp.MustCompile(`(\d+\.\d+\.\d+\.\d+|\[[0-9a-fA-F:.]+\]):\d+`)

// uncounted says why numbers of kubelets are missing, each reason once, that of most nodes
// first.
func uncounted(s topSample) []screen.Line {
	by := map[string][]string{}
	for _, n := range s.nodes {
		if why := s.uncounted[n.Name]; why != "" {
			why = strings.NewReplacer(strconv.Quote(n.Name), "NODE", "nodes "+n.Name+")", "nodes NODE)").Replace(why)
			why = address.ReplaceAllString(why, "ADDRESS")
			by[why] = append(by[why], n.Name)
		}
	}
	reasons := slices.SortedFunc(maps.Keys(by), func(a, b string) int { return cmp.Or(len(by[b])-len(by[a]), cmp.Compare(a, b)) })
	var lines []screen.Line
	for _, why := range reasons[:min(len(reasons), mostReasons)] {
		names := by[why]
		text := output.Count(len(names), "kubelet", "kubelets") + " not counted (" + strings.Join(names[:min(len(names), 3)], ", ")
		if len(names) > 3 {
			text += ", …"
		}
		lines = append(lines, screen.Line{Text: text + "): " + why, Kind: screen.Warn})
	}
	if len(reasons) > mostReasons {
		others := 0
		for _, why := range reasons[mostReasons:] {
			others += len(by[why])
		}
		lines = append(lines, screen.Line{Text: output.Count(others, "kubelet", "kubelets") + " not counted for other reasons", Kind: screen.Warn})
	}
	return lines
}

// telling is what samples say together.
type telling struct {
	last topSample
	// minute is what nodes counted in the last minute, as near as the samples allow, and
	// in how much time. Without a second sample there is none.
	minute map[string]cluster.Counts
	spans  map[string]time.Duration
	// recent is what nodes counted in the time of all samples: covered. It does not have a
	// node that was counted once. If there is only one sample covered is 0, and it is all since
	// the kubelets' starts.
	recent  map[string]cluster.Counts
	covered time.Duration
}

// told sums up samples, of which there is at least one. Pure.
func told(samples []topSample) telling {
	last := samples[len(samples)-1]
	t := telling{last: last, minute: map[string]cluster.Counts{}, spans: map[string]time.Duration{}, recent: map[string]cluster.Counts{}, covered: last.at.Sub(samples[0].at)}
	for node, counts := range last.counts {
		if t.covered == 0 {
			t.recent[node] = counts
		}
		oldest, minute := -1, -1
		for i, s := range samples[:len(samples)-1] {
			if _, is := s.counts[node]; !is {
				continue
			}
			if oldest < 0 {
				oldest = i
			}
			if minute < 0 || last.at.Sub(s.at) >= time.Minute {
				minute = i
			}
		}
		if oldest >= 0 {
			t.recent[node] = counts.Since(samples[oldest].counts[node])
			t.minute[node], t.spans[node] = counts.Since(samples[minute].counts[node]), last.at.Sub(samples[minute].at)
		}
	}
	return t
}

func (t telling) span() string {
	if t.covered == 0 {
		return "since the kubelets' starts"
	}
	return "in the last " + t.covered.Round(time.Second).String()
}

func (t telling) everywhere() []string {
	var names []string
	for _, n := range t.last.nodes {
		names = append(names, n.Name)
	}
	return names
}

// rate is how much of something nodes counted in a minute, or "-" if nobody has counted
// for long enough.
func (t telling) rate(of func(cluster.Counts) float64, nodes []string) string {
	sum, is := 0.0, false
	for _, name := range nodes {
		if span := t.spans[name]; span > 0 {
			sum, is = sum+of(t.minute[name])*float64(time.Minute)/float64(span), true
		}
	}
	if !is {
		return "-"
	}
	return fmt.Sprint(math.Round(sum))
}

// quantile is p95 of some of what nodes counted.
func (t telling) quantile(of func(cluster.Counts) cluster.Durations, nodes []string) string {
	var sum cluster.Durations
	for _, name := range nodes {
		if counts, is := t.recent[name]; is {
			sum = sum.Plus(of(counts))
		}
	}
	if sum.Count == 0 {
		return "-"
	}
	seconds, over := sum.Quantile(0.95)
	text := fmt.Sprintf("%.2fs", seconds)
	if seconds < 1 {
		text = fmt.Sprintf("%.0fms", seconds*1000)
	}
	if over {
		text = ">" + text
	}
	return text
}

// handlers is the table of the handlers that nodes, pods or kubelets know.
func (t telling) handlers(width int) []screen.Line {
	having, usable, pods, pending := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	names := map[string]bool{}
	for _, n := range t.last.nodes {
		for _, h := range n.Handlers {
			names[h.Name] = true
			having[h.Name]++
			if n.Ready && !n.Cordoned {
				usable[h.Name]++
			}
		}
	}
	for p, n := range t.last.pods {
		names[p.handler] = true
		pods[p.handler] += n
		if p.pending {
			pending[p.handler] += n
		}
	}
	for _, counts := range t.last.counts {
		for name := range counts.Sandboxes {
			names[name] = true
		}
	}
	table := &output.Table{Header: []string{"HANDLER", "NODES", "USABLE", "PODS", "PENDING", "STARTS/MIN", "FAILED/MIN", "P95"}}
	var kinds []screen.Kind
	for _, name := range slices.Sorted(maps.Keys(names)) {
		sandboxes := func(c cluster.Counts) cluster.Durations { return c.Sandboxes[name] }
		table.Add(cmp.Or(name, "default"), fmt.Sprint(having[name]), fmt.Sprint(usable[name]), fmt.Sprint(pods[name]), fmt.Sprint(pending[name]),
			t.rate(func(c cluster.Counts) float64 { return sandboxes(c).Count }, t.everywhere()),
			t.rate(func(c cluster.Counts) float64 { return c.Failed[name] }, t.everywhere()),
			t.quantile(sandboxes, t.everywhere()))
		kind := screen.Plain
		switch {
		case usable[name] == 0:
			kind = screen.Bad
		case usable[name] < having[name] || pending[name] > 0:
			kind = screen.Warn
		}
		kinds = append(kinds, kind)
	}
	return screen.Rows(table, width, kinds)
}

// nodes is the table of the nodes.
func (t telling) nodes(width int) []screen.Line {
	pods := map[string]int{}
	for p, n := range t.last.pods {
		pods[p.node] += n
	}
	table := &output.Table{Header: []string{"NODE", "STATUS", "PODS", "STARTS/MIN", "SANDBOX", "PULL", "CREATE", "START", "GAPS"}}
	var kinds []screen.Kind
	for _, n := range t.last.nodes {
		only := []string{n.Name}
		row := []string{n.Name, nodeStatus(n), fmt.Sprint(pods[n.Name]), t.rate(cluster.Counts.Starts, only)}
		for _, phase := range cluster.Phases {
			row = append(row, t.quantile(func(c cluster.Counts) cluster.Durations { return c.Calls[phase] }, only))
		}
		table.Add(append(row, or(strings.Join(gapsOf(n), ", ")))...)
		kind := screen.Plain
		switch {
		case !n.Ready:
			kind = screen.Bad
		case n.Cordoned || slices.ContainsFunc(n.Gaps, func(g cluster.Gap) bool { return len(g.Classes) > 0 }):
			kind = screen.Warn
		}
		kinds = append(kinds, kind)
	}
	return screen.Rows(table, width, kinds)
}
