package featurefile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

func content(labels ...string) Content {
	var c Content
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		c.Labels = append(c.Labels, nodelabel.Fact{Key: key, Value: value})
	}
	c.Features = []nodelabel.Fact{{Key: "state", Value: "ready"}}
	return c
}

func TestText(t *testing.T) {
	got, left := content("a/runc=ready", "a/crun=ready").text(noon)
	want := head + "# +expiry-time=2026-05-04T12:00:00Z\na/runc=ready\na/crun=ready\n# +no-label\nstate=ready\n"
	if got != want || left != 0 {
		t.Errorf("got, with %d labels left out,\n%s\nwant\n%s", left, got, want)
	}
	if got := expires(got); !got.Equal(noon) {
		t.Errorf("the text expires at %v", got)
	}
	local := noon.In(time.FixedZone("east", 3600)).Add(999 * time.Millisecond)
	if again, _ := content("a/runc=ready", "a/crun=ready").text(local); again != want {
		t.Errorf("in another time zone, the text is\n%s", again)
	}
}

// Labels beyond the largest size are left out, as whole lines from the end.
func TestTextThatIsTooLong(t *testing.T) {
	var c Content
	for i := range 2000 {
		c.Labels = append(c.Labels, nodelabel.Fact{Key: nodelabel.Handler(fmt.Sprintf("handler-%04d", i)), Value: nodelabel.Ready})
	}
	text, left := c.text(noon)
	if len(text) > largest || len(text) < largest-100 {
		t.Errorf("the text has %d bytes", len(text))
	}
	if got := strings.Count(text, "=ready\n"); got+left != 2000 || left == 0 {
		t.Errorf("the text has %d labels, and %d are left out", got, left)
	}
	if !strings.HasSuffix(text, "=ready\n") || !strings.Contains(text, nodelabel.Handler("handler-0000")) {
		t.Errorf("the text ends in %q", text[len(text)-60:])
	}
	if due(text, c, time.Hour, noon.Add(-40*time.Minute)) {
		t.Error("a text with labels left out is due again at once")
	}
}

func TestDue(t *testing.T) {
	c := content("a/runc=ready", "a/crun=ready")
	text, _ := c.text(noon)
	const lifetime = 10 * time.Minute
	for name, v := range map[string]struct {
		text string
		now  time.Time
		want bool
	}{
		"fresh":                       {text, noon.Add(-lifetime), false},
		"before half of its lifetime": {text, noon.Add(-lifetime/2 - time.Second), false},
		"half of its lifetime":        {text, noon.Add(-lifetime / 2), true},
		"expired":                     {text, noon.Add(time.Hour), true},
		"clock set back":              {text, noon.Add(-lifetime - time.Minute), true},
		"no file":                     {"", noon.Add(-lifetime), true},
		"another label":               {strings.Replace(text, "crun=ready", "kata=ready", 1), noon.Add(-lifetime), true},
		"another feature":             {strings.Replace(text, "state=ready", "state=cordoned", 1), noon.Add(-lifetime), true},
		"cut off":                     {text[:len(text)-3], noon.Add(-lifetime), true},
		"a line added":                {text + "a/mine=1\n", noon.Add(-lifetime), true},
		"invalid time":                {strings.Replace(text, "2026-", "26-", 1), noon.Add(-lifetime), true},
		"file of another program":     {"a/runc=ready\n", noon.Add(-lifetime), true},
		"binary content":              {"\x00\xff", noon.Add(-lifetime), true},
	} {
		test.Equal(t, fmt.Sprintf("%s: due", name), due(v.text, c, lifetime, v.now), v.want)
	}
}

// A text that expires at the content's end is not rewritten, because the end cannot be extended.
func TestDueWithAnEnd(t *testing.T) {
	c := content("a/runc=ready")
	c.end = noon
	for _, v := range []struct {
		what       string
		until, now time.Time
		want       bool
	}{
		{"has the latest expiry time", noon, noon.Add(-time.Hour), false},
		{"expires soon", noon, noon.Add(-time.Minute), false},
		{"expires too late", noon.Add(10 * time.Minute), noon.Add(-50 * time.Minute), true},
		{"expires too early", noon.Add(-10 * time.Minute), noon.Add(-20 * time.Minute), true},
	} {
		text, _ := c.text(v.until)
		test.Equal(t, fmt.Sprintf("a text that %s is due", v.what), due(text, c, time.Hour, v.now), v.want)
	}
}

// A lasting text has no expiry time, so time alone does not make it due.
func TestTextThatLasts(t *testing.T) {
	c := Content{Labels: content("a/runc.present=true").Labels}
	text, left := c.text(time.Time{})
	if want := head + "a/runc.present=true\n"; text != want || left != 0 {
		t.Errorf("got, with %d labels left out,\n%s\nwant\n%s", left, text, want)
	}
	bounded, _ := c.text(noon)
	other, _ := content("a/crun.present=true").text(time.Time{})
	for name, v := range map[string]struct {
		text string
		want bool
	}{"the same": {text, false}, "with an expiry time": {bounded, true}, "another label": {other, true}, "no file": {"", true}} {
		test.Equal(t, fmt.Sprintf("%s: due", name), due(v.text, c, 0, noon), v.want)
	}
}

func TestUntrue(t *testing.T) {
	written, _ := content("a/runc=ready", "a/crun=ready").text(noon)
	for name, v := range map[string]struct {
		now  Content
		want bool
	}{
		"the same":             {content("a/runc=ready", "a/crun=ready"), false},
		"more":                 {content("a/runc=ready", "a/crun=ready", "a/kata=ready"), false},
		"less":                 {content("a/runc=ready"), true},
		"another value":        {content("a/runc=ready", "a/crun=slow"), true},
		"nothing":              {Content{}, true},
		"only features differ": {Content{Labels: content("a/runc=ready", "a/crun=ready").Labels}, false},
	} {
		test.Equal(t, fmt.Sprintf("%s: untrue", name), untrue(written, v.now), v.want)
	}
	if untrue("", Content{}) {
		t.Error("an empty text is untrue")
	}
}

// Of an earlier file, only the labels and features of unprobed handlers are kept.
func TestKeeping(t *testing.T) {
	fact := func(key, value string) nodelabel.Fact { return nodelabel.Fact{Key: key, Value: value} }
	said := Content{
		Labels:   []nodelabel.Fact{fact(nodelabel.Handler("kata"), "ready"), fact(nodelabel.Handler("runc"), "ready"), fact(nodelabel.MaxPods("kata"), "7")},
		Features: []nodelabel.Fact{fact(nodelabel.About("kata", "state"), "ready"), fact(nodelabel.About("runc", "state"), "ready")},
	}
	now := Content{
		Labels:   []nodelabel.Fact{fact(nodelabel.Handler("crun"), "ready")},
		Features: []nodelabel.Fact{fact(nodelabel.About("crun", "state"), "ready"), fact(nodelabel.About("kata", "state"), "not-ready")},
	}
	text, _ := said.text(noon)
	earlier := parse(text)
	if again, _ := earlier.text(noon); again != text {
		t.Errorf("got\n%s\nof\n%s", again, text)
	}
	for _, c := range []struct {
		what      string
		undecided []string
		want      Content
	}{
		{"all are probed", nil, now},
		{"one is not probed", []string{"kata"}, Content{
			Labels:   []nodelabel.Fact{fact(nodelabel.Handler("kata"), "ready"), fact(nodelabel.MaxPods("kata"), "7"), fact(nodelabel.Handler("crun"), "ready")},
			Features: []nodelabel.Fact{fact(nodelabel.About("kata", "state"), "ready"), fact(nodelabel.About("crun", "state"), "ready")},
		}},
		{"a new one is not probed", []string{"youki"}, now},
	} {
		got, _ := now.merge(earlier.only(c.undecided)).text(noon)
		if want, _ := c.want.text(noon); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", c.what, got, want)
		}
	}
}
