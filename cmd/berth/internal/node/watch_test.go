package node

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/internal/screen"
	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

var update = flag.Bool("update", false, "write the golden files")

var watchedAt = time.Date(2026, 11, 26, 3, 4, 5, 0, time.Local)

// started returns a start of a pod that began ago before watchedAt.
func started(name, handler string, ago time.Duration, code string, ms ...int64) *adminv1.PodStart {
	d := func(i int) *durationpb.Duration { return durationpb.New(time.Duration(ms[i]) * time.Millisecond) }
	s := &adminv1.PodStart{
		Namespace: "default", Name: name, Handler: handler, BeganAt: timestamppb.New(watchedAt.Add(-ago)),
		Calls: []*adminv1.StartCall{{Rpc: "RunPodSandbox", Took: d(0), Code: code, Steps: []*adminv1.StartStep{
			{Name: "queue", Took: d(1)}, {Name: "network", Took: d(2)}, {Name: "runtime", Took: d(3)},
		}}},
	}
	all := d(0).AsDuration()
	if len(ms) > 4 {
		s.Calls = append(s.Calls, &adminv1.StartCall{Rpc: "PullImage", Of: "app", Took: d(4), Code: "OK"},
			&adminv1.StartCall{Rpc: "CreateContainer", Of: "app", Took: d(5), Code: "OK", Steps: []*adminv1.StartStep{{Name: "rootfs", Took: d(5)}}},
			&adminv1.StartCall{Rpc: "StartContainer", Of: "app", Took: d(6), Code: "OK"})
		all += d(4).AsDuration() + d(5).AsDuration() + d(6).AsDuration()
	}
	s.Took = durationpb.New(all)
	return s
}

func watched() nodeSample {
	return nodeSample{
		status: &adminv1.GetStatusResponse{
			Version: "1.2.3", StartedAt: timestamppb.New(watchedAt.Add(-26 * time.Hour)), Handlers: 3, HandlersReady: 1, Pods: 42,
			Degraded:     []string{"handler kata is not ready: kata \x1b[2J says nothing"},
			Problems:     []*adminv1.Problem{{File: "/etc/berth/conf.d/10-x.toml", Line: 3, Column: 1, Message: "unknown key"}},
			NeedsRestart: []string{"server.socket"},
		},
		handlers: []*adminv1.Handler{
			{Name: "gvisor", State: adminv1.State_STATE_CORDONED, Reason: "disk is being replaced", Pods: 2, RuntimeName: "runsc", RuntimeVersion: "2026"},
			{Name: "kata", State: adminv1.State_STATE_NOT_READY, Reason: "kata says nothing"},
			{Name: "runc", State: adminv1.State_STATE_READY, IsDefault: true, Pods: 40, RuntimeName: "runc", RuntimeVersion: "1.5.2"},
		},
		starts: []*adminv1.PodStart{
			started("web-3", "runc", 10*time.Second, "OK", 310, 10, 120, 180, 900, 40, 60),
			started("web-2", "runc", 20*time.Second, "OK", 200, 0, 90, 110, 3, 30, 50),
			started("job", "kata", 30*time.Second, "Unavailable", 1500, 0, 90, 1400),
			started("web-1", "runc", 2*time.Minute, "OK", 190, 0, 90, 100, 0, 20, 40),
			started("box", "gvisor", 9*time.Minute, "OK", 700, 0, 100, 600, 0, 90, 80),
			started("long-ago", "runc", 20*time.Minute, "OK", 60000, 0, 0, 0),
		},
	}
}

func text(p screen.Page) string {
	var b strings.Builder
	for _, l := range append(p.Top, p.Body...) {
		fmt.Fprintf(&b, "%d %s\n", l.Kind, l.Text)
	}
	return b.String()
}

func TestNodePage(t *testing.T) {
	for name, c := range map[string]struct {
		sample nodeSample
		width  int
	}{
		"wide": {watched(), 0}, "narrow": {watched(), 60}, "tiny": {watched(), 20},
		"idle": {nodeSample{status: &adminv1.GetStatusResponse{Version: "1.2.3", StartedAt: timestamppb.New(watchedAt), Recovering: true}}, 80},
	} {
		t.Run(name, func(t *testing.T) {
			got, path := text(c.sample.page(watchedAt, c.width)), filepath.Join("testdata", "watch", name+".txt")
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

func TestPerMinute(t *testing.T) {
	var many []*adminv1.PodStart
	for i := range remembered {
		many = append(many, started(fmt.Sprint(i), []string{"a", "b"}[i%2], time.Duration(i+1)*30*time.Second/remembered, "OK", 1, 0, 0, 0))
	}
	for handler, want := range map[string]int{"": 2 * remembered, "a": remembered, "c": 0} {
		test.Equal(t, fmt.Sprintf("handler %q, if the starts of the last 30 seconds are known", handler), perMinute(many, handler, watchedAt), want)
	}
	test.Equal(t, "if all starts are known", perMinute(many[:100], "", watchedAt), 100)
}

func TestP95(t *testing.T) {
	all := func(s *adminv1.PodStart) (time.Duration, bool) { return s.GetTook().AsDuration(), true }
	var starts []*adminv1.PodStart
	for i := range 100 {
		starts = append(starts, started("p", "h", time.Second, "OK", int64(i+1), 0, 0, 0))
	}
	starts = append(starts, started("failed", "h", time.Second, "Unknown", 9999, 0, 0, 0))
	for n, want := range map[int]string{0: "-", 1: "1ms", 2: "2ms", 20: "19ms", 100: "95ms", 101: "95ms"} {
		test.Equal(t, fmt.Sprintf("of %d starts", n), p95(starts[:n], "h", all), want)
	}
	test.Equal(t, "handler without starts", p95(starts, "other", all), "-")
}

// The page covers only the time in which all starts are known.
func TestCovered(t *testing.T) {
	span := func(n int, oldest time.Duration) []*adminv1.PodStart {
		var all []*adminv1.PodStart
		for i := range n {
			all = append(all, started("p", "h", oldest*time.Duration(i+1)/time.Duration(n), "OK", 1, 0, 0, 0))
		}
		return all
	}
	for name, c := range map[string]struct {
		starts []*adminv1.PodStart
		want   string
	}{
		"no starts":                          {nil, "in the last 10 minutes"},
		"all starts are known":               {span(remembered-1, time.Minute), "in the last 10 minutes"},
		"only the latest are known":          {span(remembered, 45*time.Second), "in the last 45s: the daemon remembers 256 starts"},
		"the latest of more than 10 minutes": {span(remembered, 11*time.Minute), "in the last 10 minutes"},
		"a moment ago":                       {span(remembered, 100*time.Millisecond), "in the last 1s: the daemon remembers 256 starts"},
	} {
		test.Equal(t, name, covered(c.starts, watchedAt), c.want)
		page := text(nodeSample{status: &adminv1.GetStatusResponse{}, starts: c.starts}.page(watchedAt, 0))
		if !strings.Contains(page, "by handler, "+c.want+"\n") {
			t.Errorf("%s: the page is\n%s", name, page)
		}
	}
}
