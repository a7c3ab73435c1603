package output

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-cri/berth/internal/test"
)

func TestTablesFitTheTerminal(t *testing.T) {
	tab := &Table{Header: []string{"NAME", "STATE", "REASON"}}
	tab.Add("runc (default)", "ready", "")
	tab.Add("kata", "not-ready", strings.Repeat("the shim does not answer ", 10))
	for _, width := range []int{40, 60, 80, 200} {
		for line := range strings.Lines(tab.Text(width)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("in %d columns a line has %d: %s", width, n, line)
			}
		}
	}
	if text := tab.Text(60); !strings.Contains(text, "…") || !strings.Contains(text, "runc (default)  ready") {
		t.Errorf("in 60 columns it is\n%s", text)
	}
	if text := tab.Text(0); strings.Contains(text, "…") {
		t.Errorf("without a terminal it is\n%s", text)
	}
	if text := tab.Text(5); !strings.Contains(text, "NAME") {
		t.Errorf("in a terminal that is too narrow it is\n%s", text)
	}
}

// A cell from elsewhere is one line, whatever is in it.
func TestCellsAreOneLine(t *testing.T) {
	tab := &Table{Header: []string{"A", "B"}}
	tab.Add("x\ny", "z\t\tz")
	test.Equal(t, "the result", tab.Text(0), "A    B\nx y  z z\n")
}
