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

// subject is a test or, if test is empty, a package or a build.
type subject struct{ pkg, test string }

// outcome is the result of one run of a subject.
type outcome struct {
	action string
	said   []string
}

// records has the content of the output of `go test -json`.
type records struct {
	// saying is the output of subjects that have not ended yet.
	saying map[subject][]string
	// ended has the subjects in the order of their first outcomes, and outcomes has all outcomes of
	// each: a repeated test has several, and the last one counts.
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
		if json.Unmarshal(line, &e) == nil { // the last line of a killed run may not be an event
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

// last is the last outcome of a subject.
func (r *records) last(who subject) outcome {
	all := r.outcomes[who]
	return all[len(all)-1]
}

// which returns the subjects whose last outcome has that action.
func (r *records) which(action string) []subject {
	return slices.DeleteFunc(slices.Clone(r.ended), func(who subject) bool { return r.last(who).action != action })
}

// count prints how many tests passed, failed and were skipped.
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
	// A message of a test begins with its place in a source file, or with a heading of the race
	// detector or of Go's runtime.
	begins = regexp.MustCompile(`^\s*(\S+\.go:\d+: |WARNING: DATA RACE|panic: |fatal error: )`)
	frame  = regexp.MustCompile(`^\s*(=== (RUN|PAUSE|CONT|NAME) |--- (FAIL|PASS|SKIP): |=+$)`)
	logged = regexp.MustCompile(`^\s*(time=|\{"|[EWI]\d{4} )`)
	grave  = regexp.MustCompile(`\blevel="?(error|fatal|panic)\b`)
	place  = regexp.MustCompile(`^\s*\S+\.go:\d+: `)
)

const (
	maxLines = 15 // of a test
	maxItem  = 6  // of one message, which may be the end of a daemon's log
	maxWidth = 400
	maxTests = 60
)

// words returns the messages of a test, without the other output.
func words(said []string) []string {
	var out []string
	item := 0 // lines of the present message; 0 outside of messages
	for _, line := range said {
		switch {
		case frame.MatchString(line):
			item = 0
			continue
		case logged.MatchString(line) && (item == 0 || !grave.MatchString(line)):
			continue // skips log lines, except for errors in a message, which may explain why a daemon exited
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

// failures lists the failed subjects with their messages.
func (r *records) failures() string {
	return list("FAIL", r.which("fail"), func(who subject) []string { return r.last(who).said })
}

// unsteady lists the subjects that failed and then passed when repeated, with the messages of the
// failure.
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

// list prints subjects with their messages. It leaves out a subject without messages if which also
// has one of its subtests or tests.
func list(title string, which []subject, said func(subject) []string) string {
	var text strings.Builder
	printed := 0
	for _, who := range which {
		lines := words(said(who))
		if len(lines) == 0 && above(who, which) {
			continue
		}
		if len(lines) == 0 { // a killed test, or a package or build
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

// tail is the end of the output.
func tail(said []string) []string {
	var out []string
	for _, line := range said {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, clip(line))
		}
	}
	return out[max(0, len(out)-maxLines):]
}

// skips counts skipped tests by their reasons.
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

// reason is the last message of a skipped test.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		if at := place.FindString(line); at != "" {
			return clip(strings.TrimSpace(line[len(at):]))
		}
	}
	return "without a reason"
}
