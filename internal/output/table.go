// Package output prints the results of the commands of all binaries: as a table that fits the
// terminal, as JSON or as YAML.
package output

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/printable"
)

const (
	gap = 2
	// narrowest is the smallest width to which a column is cut.
	narrowest = 8
)

// Table has a header, and rows with the same number of cells.
type Table struct {
	Header []string
	Rows   [][]string
	// Names are the objects of a list, which -q prints.
	Names []string
	// Whole disables cutting of cells.
	Whole bool

	noHeader bool
}

// Add adds a row.
func (t *Table) Add(cells ...string) { t.Rows = append(t.Rows, cells) }

// Write writes the table, cut to the width of w if that is a terminal. Scripts and files have no
// width, so for them it cuts nothing.
func (t *Table) Write(w io.Writer) error {
	width := 0
	if !t.Whole {
		width = Width(w)
	}
	_, err := io.WriteString(w, t.Text(width))
	return err
}

// Text returns the table in lines of at most width characters; 0 means no limit. A table that does
// not fit is split into several, each with the first column. Pure.
func (t *Table) Text(width int) string {
	var parts []string
	for _, part := range t.printable().parts(width) {
		parts = append(parts, part.lines(width))
	}
	return strings.Join(parts, "\n")
}

// printable returns the table with only printable characters. White space is reduced to single
// spaces.
func (t *Table) printable() *Table {
	shown := &Table{Header: t.Header, noHeader: t.noHeader}
	for _, row := range t.Rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = printable.Line(strings.Join(strings.Fields(cell), " "))
		}
		shown.Add(cells...)
	}
	return shown
}

// parts splits a table so that each part's columns can be cut to fit, if possible. Pure.
func (t *Table) parts(width int) []*Table {
	least := t.widths()
	sum := -gap
	for i := range least {
		least[i] = min(least[i], narrowest)
		sum += least[i] + gap
	}
	if width <= 0 || sum <= width {
		return []*Table{t}
	}
	var all []*Table
	for from := 1; from < len(least); {
		to, sum := from, least[0]
		for to < len(least) && (to == from || sum+gap+least[to] <= width) {
			sum += gap + least[to]
			to++
		}
		part := &Table{Header: columns(t.Header, from, to), noHeader: t.noHeader}
		for _, row := range t.Rows {
			part.Add(columns(row, from, to)...)
		}
		all, from = append(all, part), to
	}
	return all
}

// columns returns the first cell of a row and a range of the others.
func columns(row []string, from, to int) []string {
	return append([]string{row[0]}, row[from:to]...)
}

// shown returns the rows with the header, unless that is omitted.
func (t *Table) shown() [][]string {
	if t.noHeader {
		return t.Rows
	}
	return append([][]string{t.Header}, t.Rows...)
}

func (t *Table) lines(width int) string {
	widths := t.widths()
	fit(widths, width)
	var b strings.Builder
	for _, row := range t.shown() {
		var line strings.Builder
		for i, cell := range row {
			cell = Cut(cell, widths[i])
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func (t *Table) widths() []int {
	widths := make([]int, len(t.Header))
	for _, row := range t.shown() {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit narrows the widest column repeatedly, until all columns fit or none can be narrowed further.
func fit(widths []int, width int) {
	if width <= 0 {
		return
	}
	sum := gap * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	for ; sum > width; sum-- {
		widest := 0
		for i, w := range widths {
			if w >= widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrowest {
			return
		}
		widths[widest]--
	}
}

// Cut shortens a cell, with an ellipsis, and reduces its white space to single spaces.
func Cut(cell string, width int) string {
	cell = strings.Join(strings.Fields(cell), " ")
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:max(width-1, 0)]) + "…"
}

// Width returns the terminal's width; 0 for other writers.
func Width(w io.Writer) int {
	f, ok := Raw(w).(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) //nolint:gosec // a descriptor is small
	if err != nil {
		return 0
	}
	return int(size.Col)
}
