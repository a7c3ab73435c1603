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

// outcome is how one run of a subject ended.
type outcome struct {
	action string
	said   []string
}

// records are what a run wrote down.
type records struct {
	// saying is what those said that have not ended.
	saying map[subject][]string
	// ended has the subjects by their first end, outcomes every end of each: a test
	// that is repeated has several, of which the last counts.
	ended    []subject
	outcomes map[subject][]outcome
}

func newRecords() *records {
	return &records{saying: map[subject][]string{}, outcomes: map[subject][]outcome{}}
}

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
		r.saying[who] = append(r.saying[who], strings.TrimRight(e.Output, "\n"))
	case "pass", "skip", "fail", "build-fail":
		if len(r.outcomes[who]) == 0 {
			r.ended = append(r.ended, who)
		}
		r.outcomes[who] = append(r.outcomes[who], outcome{strings.TrimPrefix(e.Action, "build-"), r.saying[who]})
		delete(r.saying, who)
	}
}

// last is how a subject ended when it did so for the last time.
func (r *records) last(who subject) outcome {
	all := r.outcomes[who]
	return all[len(all)-1]
}

// which are the subjects whose last end was that.
func (r *records) which(action string) []subject {
	return slices.DeleteFunc(slices.Clone(r.ended), func(who subject) bool { return r.last(who).action != action })
}

// count is how many tests passed, failed and were skipped.
func (r *records) count() string {
	var n [3]int
	for i, action := range []string{"pass", "fail", "skip"} {
		for _, who := range r.which(action) {
			if who.test != "" {
				n[i]++
			}
		}
	}
	return fmt.Sprintln(n[0], n[1], n[2])
}

var (
	// A test's own words begin with where they were said, or with what the race
	// detector or the runtime say of it.
	begins = regexp.MustCompile(`^\s*(\S+\.go:\d+: |WARNING: DATA RACE|panic: |fatal error: )`)
	frame  = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME) |--- (FAIL|PASS|SKIP): |=+$)`)
	logged = regexp.MustCompile(`^\s*(time=|\{"|[EWI]\d{4} )`)
	grave  = regexp.MustCompile(`\blevel="?(error|fatal|panic)\b`)
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
		case frame.MatchString(line):
			item = 0
			continue
		case logged.MatchString(line) && (item == 0 || !grave.MatchString(line)):
			continue // what a daemon says without a time comes last, and why it ended
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

// failures names what failed, with its words.
func (r *records) failures() string {
	return list("FAIL", r.which("fail"), func(who subject) []string { return r.last(who).said })
}

// unsteady names what failed and passed when it was repeated, with what it said
// when it failed.
func (r *records) unsteady() string {
	failed := func(o outcome) bool { return o.action == "fail" }
	var which []subject
	for _, who := range r.which("pass") {
		if slices.ContainsFunc(r.outcomes[who], failed) {
			which = append(which, who)
		}
	}
	return list("UNSTEADY", which, func(who subject) []string {
		return r.outcomes[who][slices.IndexFunc(r.outcomes[who], failed)].said
	})
}

// list names subjects with their words. Who has none of its own and is there
// because of a sub-test, or of a test, is left out.
func list(title string, which []subject, said func(subject) []string) string {
	var text strings.Builder
	printed := 0
	for _, who := range which {
		lines := words(said(who))
		if len(lines) == 0 && above(who, which) {
			continue
		}
		if len(lines) == 0 { // it was killed, or is no test
			lines = tail(said(who))
		}
		if printed++; printed > maxTests {
			continue
		}
		fmt.Fprintln(&text, strings.TrimSpace(title+" "+who.pkg+" "+who.test))
		for _, line := range lines {
			fmt.Fprintln(&text, "    "+line)
		}
	}
	if more := printed - maxTests; more > 0 {
		fmt.Fprintf(&text, "and %d more\n", more)
	}
	return text.String()
}

func above(who subject, which []subject) bool {
	return slices.ContainsFunc(which, func(other subject) bool {
		if other.pkg != who.pkg || other == who {
			return false
		}
		return who.test == "" || strings.HasPrefix(other.test, who.test+"/")
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
	for _, who := range r.which("skip") {
		if who.test != "" {
			count[reason(r.last(who).said)]++
		}
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
