package screen

import (
	"strings"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/pkg/printable"
)

// Kind is the kind of a line, which selects its color. The text alone is complete without colors.
type Kind int

// Kinds of lines.
const (
	Plain Kind = iota
	Title
	Head // of a table
	Warn
	Bad
	Dim
)

// Line is one line of a Page.
type Line struct {
	Text string
	Kind Kind
}

// Page is the content of a screen. Top stays in place when Body is scrolled.
type Page struct{ Top, Body []Line }

// Rows returns the lines of a table, cut to width unless that is 0. Each row has a kind in kinds.
func Rows(t *output.Table, width int, kinds []Kind) []Line {
	var lines []Line
	row := -1 // the header comes first, in each part of a table that is wider than the screen
	for text := range strings.SplitSeq(strings.TrimRight(t.Text(width), "\n"), "\n") {
		kind := Head
		switch {
		case text == "":
			row, kind = -2, Plain
		case row >= 0 && row < len(kinds):
			kind = kinds[row]
		case row >= 0:
			kind = Plain
		}
		lines = append(lines, Line{text, kind})
		row++
	}
	return lines
}

// keys is the text of the last line of a screen.
const keys = "q quits, arrows scroll"

// fit returns the visible lines of a page: the top, the body from line scroll on, and the keys. It
// also returns scroll within its bounds.
func fit(p Page, width, height, scroll int) ([]Line, int) {
	room := height - len(p.Top) - 1
	last := max(0, len(p.Body)-max(room, 0))
	scroll = min(max(scroll, 0), last)
	lines := append([]Line{}, p.Top...)
	if room > 0 {
		lines = append(lines, p.Body[scroll:min(scroll+room, len(p.Body))]...)
	}
	end := keys
	if last > 0 {
		end = output.Count(last-scroll, "line", "lines") + " below; " + keys
	}
	for len(lines) < height-1 {
		lines = append(lines, Line{})
	}
	lines = append(lines[:max(0, min(len(lines), height-1))], Line{end, Dim})
	for i := range lines {
		lines[i].Text = cut(lines[i].Text, width)
	}
	return lines, scroll
}

// cut shortens a line, and keeps the spaces between the columns of a table.
func cut(text string, width int) string {
	text = printable.Line(text)
	if all := []rune(text); width > 0 && len(all) > width {
		return string(all[:width-1]) + "…"
	}
	return text
}

// plain returns a page as text without size and colors.
func (p Page) plain() string {
	var b strings.Builder
	for _, lines := range [][]Line{p.Top, p.Body} {
		for _, l := range lines {
			b.WriteString(printable.Line(l.Text) + "\n")
		}
	}
	return b.String()
}
