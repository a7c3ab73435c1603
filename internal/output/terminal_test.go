package output

import (
	"strings"
	"testing"
)

func TestTerminal(t *testing.T) {
	for _, cut := range []int{1, 2, 3, 5, 1000} {
		var got strings.Builder
		w := NewTerminal(&got)
		const text = "NAME\tSTATE\nrunc\t\x1b]0;owned\x07not-ready: größe 世界 🚢\r\xff\n"
		for rest := text; rest != ""; {
			part := rest[:min(cut, len(rest))]
			if n, err := w.Write([]byte(part)); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
			rest = rest[len(part):]
		}
		if want := "NAME\tSTATE\nrunc\t\\u001b]0;owned\\u0007not-ready: größe 世界 🚢\\r\\xff\n"; got.String() != want {
			t.Errorf("written in pieces of %d it is %q", cut, got.String())
		}
	}
}

func TestCellsPrint(t *testing.T) {
	table := &Table{Header: []string{"NAME", "REASON"}}
	table.Add("runc", "no \x1b[2J\u009b1m such\r\nfile")
	table.Add("crun", "")
	for _, width := range []int{0, 40} {
		if got, want := table.Text(width), "NAME  REASON\nrunc  no \\u001b[2J\\u009b1m such file\ncrun\n"; got != want {
			t.Errorf("in %d columns it is %q, want %q", width, got, want)
		}
	}
}
