package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// The headings of the parts of docs/testing.md that have lines.
const (
	heading = "## The CRI, line by line"
	pains   = "## Problems of other daemons"
)

// line is one demand of the CRI, or one problem of other daemons.
type line struct {
	// name is its subject with a number: "StopContainer 3".
	name string
	text string
	// proofs must all pass.
	proofs []proof
}

// proof is a test, as docs/testing.md writes it.
type proof string

// conformanceSuite is the prefix of checks of the conformance suite. Their group and name follow,
// without a handler.
const conformanceSuite = "conformance/"

// product are the directories of the shipped code.
var product = []string{"pkg", "cmd", "internal", "contrib/cluster"}

// split returns the package's directory and the test; for a check of the conformance suite, the
// test is its group and name.
func (p proof) split() (dir, test string) {
	if check, ok := strings.CutPrefix(string(p), conformanceSuite); ok {
		return "integration/conformance", check
	}
	dir, test, _ = strings.Cut(string(p), "/Test")
	if !slices.ContainsFunc(product, func(of string) bool { return strings.HasPrefix(dir, of+"/") }) {
		dir = path.Join("integration", dir)
	}
	return dir, "Test" + test
}

// parse reads the tables below a heading: rows of name, text and proofs.
func parse(document, heading string) ([]line, error) {
	_, part, found := strings.Cut(document, "\n"+heading+"\n")
	if !found {
		return nil, fmt.Errorf("no heading %q", heading)
	}
	part, _, _ = strings.Cut(part, "\n## ")
	var lines []line
	for row := range strings.Lines(part) {
		row = strings.TrimSpace(row)
		if !strings.HasPrefix(row, "|") || strings.HasPrefix(row, "|---") || strings.HasPrefix(row, "| line |") {
			continue
		}
		cells := strings.Split(strings.Trim(row, "|"), "|")
		if len(cells) != 3 {
			return nil, fmt.Errorf("%q has %d cells, want 3", row, len(cells))
		}
		l := line{name: strings.TrimSpace(cells[0]), text: strings.TrimSpace(cells[1])}
		// Every second piece is between back quotes.
		for i, piece := range strings.Split(cells[2], "`") {
			if i%2 == 1 {
				l.proofs = append(l.proofs, proof(piece))
			}
		}
		lines = append(lines, l)
	}
	return lines, nil
}
