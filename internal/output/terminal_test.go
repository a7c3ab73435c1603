package output

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
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
		test.Equal(t, fmt.Sprintf("written in pieces of %d bytes", cut), got.String(), "NAME\tSTATE\nrunc\t\\u001b]0;owned\\u0007not-ready: größe 世界 🚢\\r\\xff\n")
	}
}

func TestCellsPrint(t *testing.T) {
	table := &Table{Header: []string{"NAME", "REASON"}}
	table.Add("runc", "no \x1b[2J\u009b1m such\r\nfile")
	table.Add("crun", "")
	for _, width := range []int{0, 40} {
		test.Equal(t, fmt.Sprintf("in %d columns", width), table.Text(width), "NAME  REASON\nrunc  no \\u001b[2J\\u009b1m such file\ncrun\n")
	}
}
