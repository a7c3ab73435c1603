package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action, Package, Test, ImportPath, Output string
}

// subject is a test, or with an empty test a package or what was to be built.
type subject struct{ pkg, test string }

// records are what a run wrote down.
type records struct {
	said    map[subject][]string
	failed  []subject
	skipped []subject
}

func newRecords() *records { return &records{said: map[subject][]string{}} }

func (r *records) read(from io.Reader) error {
	lines := bufio.NewReader(from)
	for {
		line, err := lines.ReadBytes('\n')
		var e event
		if json.Unmarshal(line, &e) == nil { // the last line of a run that was killed is no event
			r.add(e)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *records) add(e event) {
	who := subject{e.Package, e.Test}
	if e.ImportPath != "" {
		who = subject{pkg: e.ImportPath}
	}
	switch e.Action {
	case "output", "build-output":
		r.said[who] = append(r.said[who], strings.TrimRight(e.Output, "\n"))
	case "fail", "build-fail":
		r.failed = append(r.failed, who)
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, who)
		}
	}
}

var (
	// A test's own words begin with where they were said, or with what the race
	// detector or the runtime say of it.
	begins = regexp.MustCompile(`^\s*(\S+\.go:\d+: |WARNING: DATA RACE|panic: |fatal error: )`)
	frame  = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME) |--- (FAIL|PASS|SKIP): |=+$)`)
	logged = regexp.MustCompile(`^\s*(time=|\{"|[EWI]\d{4} )`)
	place  = regexp.MustCompile(`^\s*\S+\.go:\d+: `)
)

const (
	maxLines = 15 // of a test
	maxItem  = 6  // of one thing that it said, which may be the end of a daemon's log
	maxWidth = 400
	maxTests = 60
)

// words are what a test itself said.
func words(said []string) []string {
	var out []string
	item := 0 // lines of the present one; 0 outside of any
	for _, line := range said {
		switch {
		case frame.MatchString(line), logged.MatchString(line):
			item = 0
			continue
		case begins.MatchString(line):
			item = 1
		case item > 0:
			item++
		}
		if item > 0 && item <= maxItem && strings.TrimSpace(line) != "" {
			out = append(out, clip(strings.TrimSpace(line)))
		}
	}
	return out[:min(len(out), maxLines)]
}

func clip(s string) string {
	if len(s) > maxWidth {
		return s[:maxWidth] + "..."
	}
	return s
}

// failures names what failed, with its words. Who has none of its own and failed
// because of a sub-test, or of a test, is left out.
func (r *records) failures() string {
	var text strings.Builder
	printed := 0
	for _, f := range r.failed {
		said := words(r.said[f])
		if len(said) == 0 && r.failedBelow(f) {
			continue
		}
		if len(said) == 0 { // it was killed, or is no test
			said = tail(r.said[f])
		}
		if printed++; printed > maxTests {
			continue
		}
		fmt.Fprintln(&text, strings.TrimSpace("FAIL "+f.pkg+" "+f.test))
		for _, line := range said {
			fmt.Fprintln(&text, "    "+line)
		}
	}
	if more := printed - maxTests; more > 0 {
		fmt.Fprintf(&text, "and %d more\n", more)
	}
	return text.String()
}

func (r *records) failedBelow(f subject) bool {
	return slices.ContainsFunc(r.failed, func(other subject) bool {
		if other.pkg != f.pkg || other == f {
			return false
		}
		return f.test == "" || strings.HasPrefix(other.test, f.test+"/")
	})
}

// tail is the end of what was printed.
func tail(said []string) []string {
	var out []string
	for _, line := range said {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, clip(line))
		}
	}
	return out[max(0, len(out)-maxLines):]
}

// skips counts the tests that were skipped by their reasons.
func (r *records) skips() string {
	count := map[string]int{}
	for _, s := range r.skipped {
		count[reason(r.said[s])]++
	}
	reasons := make([]string, 0, len(count))
	for why := range count {
		reasons = append(reasons, why)
	}
	sort.Slice(reasons, func(i, j int) bool {
		a, b := reasons[i], reasons[j]
		return count[a] > count[b] || count[a] == count[b] && a < b
	})
	var text strings.Builder
	for _, why := range reasons {
		fmt.Fprintf(&text, "%4d skipped: %s\n", count[why], why)
	}
	return text.String()
}

// reason is the last thing that a skipped test said.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		if at := place.FindString(line); at != "" {
			return clip(strings.TrimSpace(line[len(at):]))
		}
	}
	return "for no reason that it gave"
}
