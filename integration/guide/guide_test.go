// Package guide follows docs/operations.md, docs/migration.md and a part of docs/runtimeclass.md
// as an operator does: it runs the commands of each page in order, on a node that is set up as the
// page describes, with a real daemon and real pods, and compares the output with that of the
// page. It leaves out blocks that are marked as not run.
package guide

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// atMost is much longer than the commands of any block take.
const atMost = 2 * time.Minute

func TestOperationsPage(t *testing.T) {
	n := walk(t, "../../docs/operations.md", "", 20, newNode)
	n.live(t)
}

// walk runs the commands of a page, or of the part under one heading, on the node that begin
// makes, and returns that node. It fails if the page has fewer blocks of commands than blocks.
func walk(t *testing.T, page, heading string, blocks int, begin func(*testing.T) *node) *node {
	t.Helper()
	text, err := os.ReadFile(page)
	testbed.Must(t, err)
	steps, err := parse(under(string(text), heading))
	testbed.Mustf(t, err, "%s", page)
	n := begin(t)
	typed := 0
	for _, s := range steps {
		if s.direction != "" {
			t.Run(fmt.Sprintf("line %d: %s", s.line, s.direction), func(t *testing.T) { n.follow(t, s.direction) })
		} else {
			typed++
			first, _, _ := strings.Cut(s.commands, "\n")
			t.Run(fmt.Sprintf("line %d: %s", s.line, first), func(t *testing.T) { n.types(t, s) })
		}
		if t.Failed() {
			t.FailNow() // later steps depend on this one
		}
	}
	if typed < blocks {
		t.Errorf("the page has %d blocks of commands, want %d or more", typed, blocks)
	}
	return n
}

// live checks that the walk has left pods, and that they still run.
func (n *node) live(t *testing.T) {
	t.Helper()
	if len(n.pods) == 0 {
		t.Error("the walk has left no pods")
	}
	for name, pod := range n.pods {
		testbed.Same(t, pod.Container.Exec(t, "echo", name), name+"\n", "at the end pod %s prints", name)
	}
}

// types executes a block of commands in a shell.
func (n *node) types(t *testing.T, s step) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), atMost)
	defer cancel()
	options := "-euo"
	if s.status != 0 {
		options = "-uo" // as at a terminal: the status of the last command counts
	}
	c := n.command(ctx, "bash", options, "pipefail", "-c", "cd "+cmp.Or(n.dir, "/")+"\n"+s.commands)
	out := &screen{}
	c.Stdout, c.Stderr = out, out
	testbed.Must(t, c.Start())
	if s.meanwhile != "" {
		if out.waits(ctx) {
			n.follow(t, s.meanwhile)
		} else {
			t.Errorf("the commands do not wait for pods")
		}
	}
	err := c.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if got := c.ProcessState.ExitCode(); s.status != anyStatus && got != s.status {
		t.Errorf("exit status %d, want %d as on the page:\n%s", got, s.status, out)
	}
	if missing, ok := says(s.output, out.String()); s.shown && !ok {
		t.Errorf("the output is\n%sbut the page has: %s", out, missing)
	}
	t.Logf("%s", out)
}

// screen collects the output of commands.
type screen struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return klogLine.ReplaceAllString(s.text.String(), "")
}

// klogLine matches a log line of the Kubernetes client in kubectl, which may write one at any time.
var klogLine = regexp.MustCompile(`(?m)^[IWE]\d{4} .*\n`)

// waits waits until commands report that pods are left. It returns false if ctx ends first.
func (s *screen) waits(ctx context.Context) bool {
	for !strings.Contains(s.String(), " left: ") {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return true
}

// TestSays checks which output a page may leave out, and which differences are ignored.
func TestSays(t *testing.T) {
	const output = "NAME   STATE  PODS\nrunc   ready  2\ncrun   not-ready  0\n"
	for page, want := range map[string]bool{
		output: true, "NAME STATE PODS\n...\ncrun not-ready 0\n": true, "...\nrunc ...\n...\n": true, "...\n": true,
		"NAME STATE PODS\n": false, "...\nrunc ready 2\n": false, "...\nrunc ready 3\n...\n": false, "...\ncrun ...\nrunc ...\n": false,
		output + "more\n": false, "": false,
	} {
		if missing, ok := says(page, output); ok != want {
			t.Errorf("%q: matches: %v, want %v (%s)", page, ok, want, missing)
		}
	}
	if _, ok := says("crun 1.14.4, since 3m2s, pod 0123456789ab\n", "crun 1.8.1, since  15s, pod ba9876543210\n"); !ok {
		t.Error("values that differ between machines are compared")
	}
}

func TestUnder(t *testing.T) {
	const page = "# Page\n## One\n1\n### Part\n2\n## Other\n3\n"
	for heading, want := range map[string]string{"": page, "## One": "\n\n1\n### Part\n2", "## Other": "\n\n\n\n\n\n3\n", "## On": "\n"} {
		if got := under(page, heading); strings.TrimRight(got, "\n") != strings.TrimRight(want, "\n") {
			t.Errorf("the text under %q is %q, want %q", heading, got, want)
		}
	}
}

func TestParse(t *testing.T) {
	steps, err := parse("# Page\n\n<!-- test: run crun web -->\n\n<!-- test: status 3 -->\n```sh\nberth status\n```\n\n```text\nbad\n```\n\n" +
		"<!-- not run: needs an API server -->\n```sh\nkubectl drain\n```\n\n<!-- test: meanwhile remove web -->\n```sh\nberth handler drain crun\n```\n\nWords.\n\n```text\nelse\n```\n")
	testbed.Must(t, err)
	want := []step{
		{line: 3, direction: "run crun web"},
		{line: 6, commands: "berth status\n", output: "bad\n", shown: true, status: 3},
		{line: 20, commands: "berth handler drain crun\n", meanwhile: "remove web"},
	}
	if fmt.Sprint(steps) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", steps, want)
	}
	for _, bad := range []string{
		"    berth status\n", "```\nberth status\n```\n", "```sh\nberth status\n", "```text\na\n```sh\nb\n```\n", "<!-- not run: it fails -->\n```sh\nberth status\n```\n",
	} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q is accepted, want an error", bad)
		}
	}
}
