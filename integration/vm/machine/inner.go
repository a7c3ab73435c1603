package machine

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// Tests is a test binary that runs in the machine.
type Tests struct {
	// Binary is its path in the machine.
	Binary string
	// Run and Skip are patterns of names.
	Run, Skip string
	// Timeout is for all tests on a host; Test multiplies it by the machine's slowness.
	Timeout time.Duration
	// Parallel is -test.parallel; zero leaves the default.
	Parallel int
	Env      []string
}

// Test runs tests in the machine. Each of them becomes a subtest of t with the same name and
// result, and with its output if it failed or was skipped.
func (m *Machine) Test(t *testing.T, tests Tests) {
	t.Helper()
	args := []string{
		tests.Binary, "-test.v=test2json", "-test.count=1",
		"-test.timeout=" + m.Scaled(tests.Timeout).String(), "-test.run=" + tests.Run,
	}
	if tests.Skip != "" {
		args = append(args, "-test.skip="+tests.Skip)
	}
	if tests.Parallel > 0 {
		args = append(args, fmt.Sprintf("-test.parallel=%d", tests.Parallel))
	}
	converter, err := Built("test2json", "cmd/test2json", "")
	testbed.Must(t, err)
	convert := exec.CommandContext(t.Context(), converter)
	var complaint strings.Builder
	convert.Stderr = &complaint
	said, err := convert.StdinPipe()
	testbed.Must(t, err)
	events, err := convert.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, convert.Start())
	c := m.Command(args...)
	c.Dir, c.Stdout, c.Stderr = path.Dir(tests.Binary), said, said
	c.Env = append(m.Environment(), tests.Env...)
	ended := make(chan error, 1)
	go func() {
		err := c.Run(t.Context())
		ended <- errors.Join(err, said.Close())
	}()
	outcome := report(t, events)
	err = <-ended
	if failed := convert.Wait(); failed != nil {
		t.Errorf("test2json: %v: %s", failed, complaint.String())
	}
	var exit *ExitError
	switch {
	case errors.As(err, &exit) && exit.Code == 1 && outcome.failed > 0: // the subtests of t have failed too
	case err != nil:
		t.Errorf("%s: %v\n%s", tests.Binary, err, outcome.rest)
	case outcome.tests == 0:
		t.Errorf("%s has no test that matches %q:\n%s", tests.Binary, tests.Run, outcome.rest)
	}
}

// Environment returns environment variables for tests in the machine.
func (m *Machine) Environment() []string {
	return []string{fmt.Sprintf("BERTH_TEST_SLOWNESS=%.1f", m.Slowness), "BERTH_TEST_REQUIRE=1"}
}

// Scaled converts a time limit on the host into one in the machine.
func (m *Machine) Scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * m.Slowness).Round(time.Second)
}

// event is a line of test2json.
type event struct {
	Action, Test, Output string
}

// outcome counts the tests, and has the output that belongs to no test.
type outcome struct {
	tests, failed int
	rest          string
}

// report starts a subtest of t for each test in the events, as they arrive.
func report(t *testing.T, events io.Reader) outcome {
	var o outcome
	var rest strings.Builder
	all := map[string]*inner{}
	var tops sync.WaitGroup
	lines := bufio.NewScanner(events)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			fmt.Fprintf(&rest, "%s\n", lines.Text())
			continue
		}
		if e.Test == "" {
			rest.WriteString(e.Output)
			continue
		}
		switch e.Action {
		case "run":
			i := &inner{leaf: e.Test, end: make(chan struct{}), t: make(chan *testing.T, 1)}
			above, group := t, &tops
			if parent := all[parentOf(e.Test, all)]; parent != nil {
				i.leaf = strings.TrimPrefix(e.Test, parent.name+"/")
				above, group = parent.test(), &parent.below
			}
			i.name = e.Test
			all[e.Test] = i
			o.tests++
			if above == nil {
				close(i.t)
				break
			}
			group.Go(func() {
				defer close(i.t) // nothing is sent if -test.run of the host excludes the subtest
				above.Run(i.leaf, i.run)
			})
		case "output":
			if i := all[e.Test]; i != nil {
				i.said.WriteString(e.Output)
			}
		case "pass", "fail", "skip":
			if i := all[e.Test]; i != nil && i.verdict == "" {
				if e.Action == "fail" {
					o.failed++
				}
				i.verdict = e.Action
				close(i.end)
			}
		}
	}
	// A test that has not ended when the output ends was stopped by a crash or a timeout.
	for _, i := range all {
		if i.verdict == "" {
			i.verdict = "fail"
			i.said.WriteString("the test did not end\n")
			o.failed++
			close(i.end)
		}
	}
	tops.Wait()
	o.rest = rest.String()
	return o
}

// parentOf returns the longest name in all that is a parent of name: a test's own name may have
// slashes.
func parentOf(name string, all map[string]*inner) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '/' && all[name[:i]] != nil {
			return name[:i]
		}
	}
	return ""
}

// inner is a test in the machine. Only report writes said and verdict, before it closes end.
type inner struct {
	name, leaf string
	t          chan *testing.T
	once       *testing.T
	below      sync.WaitGroup
	said       strings.Builder
	verdict    string
	end        chan struct{}
}

// test waits for the subtest of this test and returns it; nil if it was excluded.
func (i *inner) test() *testing.T {
	if i.once == nil {
		i.once = <-i.t
	}
	return i.once
}

func (i *inner) run(t *testing.T) {
	i.t <- t
	<-i.end
	i.below.Wait()
	switch i.verdict {
	case "fail":
		t.Errorf("in the machine:\n%s", i.said.String())
	case "skip":
		t.Skip(reason(i.said.String()))
	}
}

// reason is the output of a skipped test without the lines of the testing package.
func reason(said string) string {
	var kept []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "===") || strings.HasPrefix(line, "---") {
			continue
		}
		kept = append(kept, line)
	}
	return strings.Join(kept, " ")
}
