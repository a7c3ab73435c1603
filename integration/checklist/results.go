package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

const module = "github.com/berth-cri/berth/"

// outcome is the result of a test.
type outcome string

const (
	passed  outcome = "passed"
	skipped outcome = "was skipped"
	failed  outcome = "failed"
	absent  outcome = "did not run"
)

// results has the outcomes of tests by package directory and name.
type results map[string]map[string]outcome

// read adds the output of `go test -json`. If a test was repeated, its last outcome counts.
func (r results) read(records io.Reader) error {
	for decoder := json.NewDecoder(records); ; {
		var event struct{ Action, Package, Test string }
		if err := decoder.Decode(&event); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read the records of a test run: %w", err)
		}
		ended, known := map[string]outcome{"pass": passed, "skip": skipped, "fail": failed}[event.Action]
		if !known || event.Test == "" {
			continue
		}
		dir := strings.TrimPrefix(event.Package, module)
		if r[dir] == nil {
			r[dir] = map[string]outcome{}
		}
		r[dir][event.Test] = ended
	}
}

// of is the outcome of a proof. A check of the conformance suite has passed if it passed with at
// least one handler and failed with none, because a handler may lack a capability.
func (r results) of(p proof) outcome {
	dir, test := p.split()
	test = recorded(test)
	if !strings.HasPrefix(string(p), conformanceSuite) {
		if o, ran := r[dir][test]; ran {
			return o
		}
		return absent
	}
	seen := map[outcome]bool{}
	for name, o := range r[dir] {
		if handler, found := strings.CutSuffix(name, "/"+test); found && strings.HasPrefix(handler, "TestBerth/") {
			seen[o] = true
		}
	}
	for _, o := range []outcome{failed, passed, skipped} {
		if seen[o] {
			return o
		}
	}
	return absent
}

// recorded is a test's name as the testing package prints it.
func recorded(test string) string { return strings.ReplaceAll(test, " ", "_") }
