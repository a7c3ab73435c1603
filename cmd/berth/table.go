package main

import (
	"io"

	"github.com/berth-cri/berth/internal/output"
)

// table has a header and rows of as many cells.
type table struct {
	header []string
	rows   [][]string
	// whole keeps cells from being cut.
	whole bool
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// write fits the table to w if that is a terminal, and cuts nothing otherwise.
func (t *table) write(w io.Writer) error { return t.shown().Write(w) }

func (t *table) shown() *output.Table {
	return &output.Table{Header: t.header, Rows: t.rows, Whole: t.whole}
}
