// Summary prints a short summary of a test run: how many tests passed, failed and were skipped, the
// reasons of skips, the messages of failed tests, and the tests that failed at first but passed
// when repeated. It reads the output of `go test -json`:
//
//	go run ./integration/summary count out/integration.json
//	go run ./integration/summary skips out/unit.json out/integration.json
//	go run ./integration/summary unsteady out/unit.json out/integration.json
//	go run ./integration/summary failures out/unit.json out/integration.json
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "summary:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, args []string) error {
	if len(args) < 2 {
		return errors.New("usage: summary count|skips|unsteady|failures <records>")
	}
	tell, known := map[string]func(*records) string{
		"count": (*records).count, "skips": (*records).skips, "unsteady": (*records).unsteady, "failures": (*records).failures,
	}[args[0]]
	if !known {
		return fmt.Errorf("%q is not one of count, skips, unsteady and failures", args[0])
	}
	all := newRecords()
	for _, path := range args[1:] {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the phase failed before its tests
		}
		if err != nil {
			return err
		}
		err = all.read(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	_, err := io.WriteString(w, tell(all))
	return err
}
