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
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write fits the table to w if that is a terminal, and cuts nothing otherwise:
// scripts and files have no width.
func (t *table) write(w io.Writer) error {
	_, err := io.WriteString(w, t.text(terminalWidth(w)))
	return err
}

// text is the table in at most width columns; 0 is any number. Pure.
func (t *table) text(width int) string {
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
