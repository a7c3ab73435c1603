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
	// Binary is its path there.
	Binary string
	// Run and Skip are patterns of names.
	Run, Skip string
	// Timeout bounds all of them, as on a host; in the machine it is longer by its slowness.
	Timeout time.Duration
	// Parallel is how many run at once; zero leaves it to them.
	Parallel int
	Env      []string
}

// Test runs tests in the machine, and makes every one of them a test below t: with
// its name, its verdict, and what it said if it failed or was skipped.
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
	case errors.As(err, &exit) && exit.Code == 1 && outcome.failed > 0: // as was told below
	case err != nil:
		t.Errorf("%s: %v\n%s", tests.Binary, err, outcome.rest)
	case outcome.tests == 0:
		t.Errorf("%s has no test that matches %q:\n%s", tests.Binary, tests.Run, outcome.rest)
	}
}

// Environment is what tests in the machine are told of it.
func (m *Machine) Environment() []string {
	return []string{fmt.Sprintf("BERTH_TEST_SLOWNESS=%.1f", m.Slowness), "BERTH_TEST_REQUIRE=1"}
}

// Scaled is how long what takes that long on a host may take here.
func (m *Machine) Scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * m.Slowness).Round(time.Second)
}

// event is a line of test2json.
type event struct {
	Action, Test, Output string
}

// outcome is what is not told by a test of its own.
type outcome struct {
	tests, failed int
	rest          string
}

// report makes a test below t of every one that the events tell of, while they do.
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
				defer close(i.t) // nothing is sent if the test is not among those asked for
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
	// What has not ended when the output has is what a crash or a hang took along.
	for _, i := range all {
		if i.verdict == "" {
			i.verdict = "fail"
			i.said.WriteString("it did not end\n")
			o.failed++
			close(i.end)
		}
	}
	tops.Wait()
	o.rest = rest.String()
	return o
}

// parentOf is the longest name of a test that one is below: names have slashes of their own.
func parentOf(name string, all map[string]*inner) string {
	for i := len(name) - 1; i > 0; i-- {
		if name[i] == '/' && all[name[:i]] != nil {
			return name[:i]
		}
	}
	return ""
}

// inner is a test in the machine. One goroutine writes what it said before end is closed.
type inner struct {
	name, leaf string
	t          chan *testing.T
	once       *testing.T
	below      sync.WaitGroup
	said       strings.Builder
	verdict    string
	end        chan struct{}
}

// test returns the test that stands for it here, when that has begun; nil if it does not.
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

// reason is what a skipped test said, without what frames it.
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
