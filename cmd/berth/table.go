package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"
)

// indented turns YAML into JSON for people and scripts alike.
func indented(text []byte) ([]byte, error) {
	text, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, text, "", "  "); err != nil {
		return nil, err
	}
	b.WriteByte('\n')
	return b.Bytes(), nil
}

const (
	gap = 2
	// narrowest is what a column keeps in the narrowest terminal.
	narrowest = 8
)

// table has a header and rows of as many cells.
type table struct {
	header []string
	rows   [][]string
	// whole keeps cells from being cut.
	whole bool
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write fits the table to w if that is a terminal, and cuts nothing otherwise:
// scripts and files have no width.
func (t *table) write(w io.Writer) error {
	width := 0
	if !t.whole {
		width = terminalWidth(w)
	}
	_, err := io.WriteString(w, t.text(width))
	return err
}

// text is the table in at most width columns; 0 is any number. One with more cells
// in a row than fit there is several, each with the first column. Pure.
func (t *table) text(width int) string {
	var parts []string
	for _, part := range t.parts(width) {
		parts = append(parts, part.lines(width))
	}
	return strings.Join(parts, "\n")
}

// parts are tables whose columns can be made narrow enough, if any can. Pure.
func (t *table) parts(width int) []*table {
	least := t.widths()
	sum := -gap
	for i := range least {
		least[i] = min(least[i], narrowest)
		sum += least[i] + gap
	}
	if width <= 0 || sum <= width {
		return []*table{t}
	}
	var all []*table
	for from := 1; from < len(least); {
		to, sum := from, least[0]
		for to < len(least) && (to == from || sum+gap+least[to] <= width) {
			sum += gap + least[to]
			to++
		}
		part := &table{header: columns(t.header, from, to)}
		for _, row := range t.rows {
			part.add(columns(row, from, to)...)
		}
		all, from = append(all, part), to
	}
	return all
}

// columns are the first cell of a row and some of the others.
func columns(row []string, from, to int) []string {
	return append([]string{row[0]}, row[from:to]...)
}

func (t *table) lines(width int) string {
	widths := t.widths()
	fit(widths, width)
	var b strings.Builder
	for _, row := range append([][]string{t.header}, t.rows...) {
		var line strings.Builder
		for i, cell := range row {
			cell = cut(cell, widths[i])
			line.WriteString(cell)
			if i < len(row)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+gap))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

func (t *table) widths() []int {
	widths := make([]int, len(t.header))
	for _, row := range append([][]string{t.header}, t.rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// fit takes from the widest column, again and again, until all fit or none is
// left that can give.
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

// cut shortens a cell, and shows that it did. A cell is one line.
func cut(cell string, width int) string {
	cell = strings.Join(strings.Fields(cell), " ")
	if utf8.RuneCountInString(cell) <= width {
		return cell
	}
	return string([]rune(cell)[:max(width-1, 0)]) + "…"
}

// terminalWidth is 0 for what is no terminal.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ) //nolint:gosec // a descriptor is small
	if err != nil {
		return 0
	}
	return int(size.Col)
}
