package screen

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/internal/test"
)

func TestSeen(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	gone := errors.New("gone")
	shows := func(text string) View {
		return func(time.Time, int) Page { return Page{Top: []Line{{text, Title}}} }
	}
	s := seen{}.with(nil, gone, at(1)).with(nil, gone, at(2))
	if !s.away.Equal(at(1)) || s.err == nil || s.view != nil {
		t.Errorf("no data from the start: %+v", s)
	}
	s = s.with(shows("7"), nil, at(3)).with(shows("8"), nil, at(4))
	if s.err != nil || !s.away.IsZero() || s.view(at(4), 0).Top[0].Text != "8" {
		t.Errorf("with data: %+v", s)
	}
	s = s.with(nil, gone, at(6))
	if s.view(at(6), 0).Top[0].Text != "8" || !s.away.Equal(at(6)) {
		t.Errorf("no data again: %+v", s)
	}
}

func TestFit(t *testing.T) {
	p := Page{Top: []Line{{"top", Title}}}
	for i := range 5 {
		p.Body = append(p.Body, Line{fmt.Sprintf("line %d", i), Plain})
	}
	for _, c := range []struct {
		width, height, scroll int
		want                  []string
		scrolled              int
	}{
		{80, 8, 0, []string{"top", "line 0", "line 1", "line 2", "line 3", "line 4", "", keys}, 0},
		{80, 8, 3, []string{"top", "line 0", "line 1", "line 2", "line 3", "line 4", "", keys}, 0},
		{80, 4, 0, []string{"top", "line 0", "line 1", "3 lines below; " + keys}, 0},
		{80, 4, 2, []string{"top", "line 2", "line 3", "1 line below; " + keys}, 2},
		{80, 4, 99, []string{"top", "line 3", "line 4", "0 lines below; " + keys}, 3},
		{80, 4, -1, []string{"top", "line 0", "line 1", "3 lines below; " + keys}, 0},
		{6, 4, 0, []string{"top", "line 0", "line 1", "3 lin…"}, 0},
		{5, 4, 0, []string{"top", "line…", "line…", "3 li…"}, 0},
		{80, 2, 0, []string{"top", "5 lines below; " + keys}, 0},
		{80, 1, 0, []string{"5 lines below; " + keys}, 0},
		{1, 1, 0, []string{"…"}, 0},
	} {
		lines, scrolled := fit(p, c.width, c.height, c.scroll)
		var got []string
		for _, l := range lines {
			got = append(got, l.Text)
		}
		if !slices.Equal(got, c.want) || scrolled != c.scrolled {
			t.Errorf("%d columns, %d lines, from %d: %d %q, want %d %q", c.width, c.height, c.scroll, scrolled, got, c.scrolled, c.want)
		}
	}
}

func TestRows(t *testing.T) {
	table := &output.Table{Header: []string{"NAME", "STATE", "REASON"}}
	table.Add("a", "ready", "")
	table.Add("b", "not-ready", "no such file in the directory")
	kinds := []Kind{Plain, Bad}
	want := map[int][]Kind{0: {Head, Plain, Bad}, 30: {Head, Plain, Bad}, 18: {Head, Plain, Bad, Plain, Head, Plain, Bad}}
	for width, want := range want {
		var got []Kind
		for _, l := range Rows(table, width, kinds) {
			got = append(got, l.Kind)
		}
		test.EqualLists(t, fmt.Sprintf("in %d columns", width), got, want)
	}
}

// counter returns a source of numbers. Sample n fails with the error of failing(n).
func counter(failing func(n int) error) Source {
	n := 0
	return Source{
		Name: "it", Every: time.Second, Timeout: time.Second,
		Sample: func(context.Context) (View, error) {
			n++
			text := fmt.Sprint(n)
			return func(_ time.Time, width int) Page {
				return Page{Top: []Line{{fmt.Sprint(text, " in ", width), Title}}, Body: []Line{{"\x1b[2Jbody", Plain}}}
			}, failing(n)
		},
		Final: func(err error) bool { return err.Error() == "never" },
	}
}

func TestPrint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		second := func(n int) error {
			switch n {
			case 2:
				return errors.New("gone")
			case 4:
				end() // the end of the context is not an error
			}
			return nil
		}
		var out strings.Builder
		test.Must(t, counter(second).Print(ctx, &out))
		since := time.Now().Add(-2 * time.Second).Format(time.TimeOnly)
		want := "1 in 0\n\\u001b[2Jbody\n\n1 in 0\nno data from it since " + since + " (0s), trying again every 1s: gone\n\\u001b[2Jbody\n\n3 in 0\n\\u001b[2Jbody\n"
		test.Equal(t, "output", out.String(), want)
	})
	var out strings.Builder
	err := counter(func(int) error { return errors.New("never") }).Print(t.Context(), &out)
	if err == nil || err.Error() != "never" || out.String() != "" {
		t.Errorf("a final error: %v, %q", err, out.String())
	}
}

func TestModel(t *testing.T) {
	m := &model{ctx: t.Context(), source: counter(func(n int) error {
		if n == 3 {
			return errors.New("never")
		}
		return nil
	})}
	if v := m.View(); !v.AltScreen || v.Content != "" {
		t.Errorf("before its size is known, the screen shows %q", v.Content)
	}
	m.Update(m.Init()())
	m.Update(tea.WindowSizeMsg{Width: 40, Height: 4})
	if v := m.View(); !strings.Contains(v.Content, "1 in 40") || !strings.Contains(v.Content, `\u001b[2Jbody`) {
		t.Errorf("the screen shows %q", v.Content)
	}
	m.Update(tea.WindowSizeMsg{Width: 20, Height: 4})
	if _, next := m.Update(due{}); next == nil {
		t.Error("due does not start a sample")
	} else if _, next = m.Update(next()); next == nil {
		t.Error("a sample does not schedule the next one")
	}
	if v := m.View(); !strings.Contains(v.Content, "2 in 20") {
		t.Errorf("after a resize, the screen shows %q", v.Content)
	}
	if _, next := m.Update(m.sample()); next == nil || next() != (tea.QuitMsg{}) {
		t.Error("the screen does not quit after a final error")
	}
	for key, quits := range map[string]tea.KeyPressMsg{
		"q": {Code: 'q', Text: "q"}, "ctrl+c": {Code: 'c', Mod: tea.ModCtrl}, "esc": {Code: tea.KeyEscape},
	} {
		if _, next := m.Update(quits); next == nil || next() != (tea.QuitMsg{}) {
			t.Errorf("%s does not quit", key)
		}
	}
}
