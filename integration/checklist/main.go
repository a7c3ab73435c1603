// Command checklist ticks off, line by line, what the CRI asks of a daemon, and what
// people suffered from with others.
//
//	go run ./integration/checklist out/unit.json out/integration.json
//
// The lines, and the tests that prove each, are in docs/testing.md. The files are
// records of `go test -json`, as `make unit integration` leaves them. A line is
// ticked off if all its tests passed. The status is 1 unless all lines are.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// document is what is ticked off, from the top of the source tree.
const document = "docs/testing.md"

func main() {
	open, err := run(os.Stdout, document, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "checklist:", err)
		os.Exit(2)
	}
	if open > 0 {
		os.Exit(1)
	}
}

// run returns how many lines are not ticked off.
func run(out io.Writer, document string, records []string) (open int, err error) {
	text, err := os.ReadFile(document)
	if err != nil {
		return 0, err
	}
	var lines []line
	for _, part := range []string{heading, pains} {
		of, err := parse(string(text), part)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", document, err)
		}
		lines = append(lines, of...)
	}
	r, err := readAll(records)
	if err != nil {
		return 0, err
	}
	var said strings.Builder
	for _, l := range lines {
		var missing []string
		for _, p := range l.proofs {
			if o := r.of(p); o != passed {
				missing = append(missing, fmt.Sprintf("      %s %s", p, o))
			}
		}
		mark := "✓"
		if len(missing) > 0 || len(l.proofs) == 0 {
			mark = "✗"
			open++
		}
		fmt.Fprintf(&said, "%s %-24s %s\n", mark, l.name, l.text)
		for _, m := range missing {
			fmt.Fprintln(&said, m)
		}
	}
	fmt.Fprintf(&said, "%d of %d lines are ticked off\n", len(lines)-open, len(lines))
	_, err = io.WriteString(out, said.String())
	return open, err
}

func readAll(records []string) (results, error) {
	if len(records) == 0 {
		return nil, fmt.Errorf("name records of `go test -json`: make unit integration leaves out/unit.json and out/integration.json")
	}
	r := results{}
	for _, path := range records {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%w; make unit integration leaves it", err)
		}
		err = r.read(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}
