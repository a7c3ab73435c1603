// Command checklist checks, line by line, that tests prove what the CRI demands of a daemon, and
// that berth does not have the known problems of other daemons.
//
//	go run ./integration/checklist out/unit.json out/integration.json
//
// The lines, and the tests that prove each, are in docs/testing.md. The files are the output of `go
// test -json`, as `make unit integration` writes them. A line is proved if all its tests passed.
// The exit status is 1 unless all lines are proved.
package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// document is the page with the lines, relative to the root of the source tree.
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

// run prints all lines and returns how many are not proved.
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
	fmt.Fprintf(&said, "%d of %d lines are proved\n", len(lines)-open, len(lines))
	_, err = io.WriteString(out, said.String())
	return open, err
}

func readAll(records []string) (results, error) {
	if len(records) == 0 {
		return nil, fmt.Errorf("missing arguments: the output of `go test -json`; `make unit integration` writes out/unit.json and out/integration.json")
	}
	r := results{}
	for _, path := range records {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("%w; `make unit integration` writes it", err)
		}
		err = r.read(file)
		file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return r, nil
}
