package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// overEach runs a check over both protocols.
func overEach(t *testing.T, run func(t *testing.T, p protocol)) {
	t.Helper()
	for _, p := range protocols {
		t.Run(string(p), func(t *testing.T) { run(t, p) })
	}
}

func streamedExec(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever(), env("SUITE", "streaming"))
	overEach(t, func(t *testing.T, p protocol) {
		s := c.open(t, p, streams{}, "sh", "-c", `echo out $SUITE; echo err >&2; printf 'a\0b\377'; exit 3`)
		testbed.Same(t, s.exitCode(), 3, "exit code")
		if s.stdout.String() != "out streaming\na\x00b\xff" || s.stderr.String() != "err\n" {
			t.Errorf("stdout %q, stderr %q", s.stdout.String(), s.stderr.String())
		}
		testbed.Same(t, c.open(t, p, streams{}, "true").exitCode(), 0, "true has exit code")
		testbed.Same(t, c.open(t, p, streams{}, "sh", "-c", "kill -KILL $$").exitCode(), 137, "a killed program has exit code")
		s = c.open(t, p, streams{noStdout: true}, "sh", "-c", "echo out; echo err >&2")
		if code := s.exitCode(); code != 0 || s.stderr.String() != "err\n" {
			t.Errorf("with stderr only: exit code %d, stderr %q", code, s.stderr.String())
		}
		s = c.open(t, p, streams{noStderr: true}, "sh", "-c", "echo out; echo err >&2; cat; exit 4")
		if code := s.exitCode(); code != 4 || s.stdout.String() != "out\n" {
			t.Errorf("with stdout only: exit code %d, stdout %q", code, s.stdout.String())
		}
	})
}

func streamedMissingProgram(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		testbed.Fails(t, c.open(t, p, streams{stdin: true}, "/no/such/program").wait(), "a missing program succeeded")
		testbed.Fails(t, c.open(t, p, streams{stdin: true, tty: true}, "/no/such/program").wait(), "a missing program succeeded in a terminal")
	})
	testbed.Same(t, c.line(t, "echo", "next"), "next", "the next exec printed")
}

func streamedTerminal(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		s := c.open(t, p, streams{stdin: true, tty: true}, "sh")
		s.resize(77, 33)
		s.send("test -t 0 && test -t 1 && test -t 2 && echo is:$((1+1)):$TERM\n")
		s.shows("is:2:xterm")
		s.untilSize("33 77")
		s.resize(0, 0) // ignored
		s.resize(101, 44)
		s.untilSize("44 101")
		s.send("echo lost:$((2+3)) >&2\n")
		s.shows("lost:5")
		s.send("exit 5\n")
		testbed.Same(t, s.exitCode(), 5, "exit code")
	})
}

// streamedFirstSize has a program read the size of its terminal at once. On a busy machine the
// client's first size may arrive too late for that.
func streamedFirstSize(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		n.eventually(t, "the first size in a session is the client's", func() bool {
			s := c.open(t, p, streams{stdin: true, tty: true, columns: 77, rows: 33}, "stty", "size")
			return s.exitCode() == 0 && strings.TrimSpace(s.stdout.String()) == "33 77"
		})
	})
}

// untilSize reads the terminal's size until it is want.
func (s *session) untilSize(want string) {
	s.t.Helper()
	s.n.eventually(s.t, "the terminal has "+want+" rows and columns", func() bool {
		s.send("echo size:$(stty size)\n")
		return strings.Contains(s.stdout.String(), "size:"+want)
	})
}

// streamedStdin sends more than all buffers on the way hold. Only SPDY can end the input.
func streamedStdin(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	text := numbers(2_000_000)
	sum := sha256.Sum256(text)
	want := hex.EncodeToString(sum[:]) + "  -\n"
	t.Run(string(spdy), func(t *testing.T) {
		s := c.open(t, spdy, streams{stdin: true}, "sha256sum")
		s.send(string(text))
		must(t, s.stdin.Close(), "end of stdin")
		if code := s.exitCode(); code != 0 || s.stdout.String() != want {
			t.Errorf("exit code %d, stdout %q, want %q", code, s.stdout.String(), want)
		}
		s = c.open(t, spdy, streams{stdin: true}, "sh", "-c", "cat; echo ended")
		must(t, s.stdin.Close(), "end of stdin")
		if code := s.exitCode(); code != 0 || s.stdout.String() != "ended\n" {
			t.Errorf("an empty stdin: exit code %d, stdout %q", code, s.stdout.String())
		}
	})
	t.Run(string(websocket), func(t *testing.T) {
		s := c.open(t, websocket, streams{stdin: true}, "sh", "-c", fmt.Sprintf("head -c %d | sha256sum", len(text)))
		s.send(string(text))
		if code := s.exitCode(); code != 0 || s.stdout.String() != want {
			t.Errorf("exit code %d, stdout %q, want %q", code, s.stdout.String(), want)
		}
	})
}

func streamedStdinOnly(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	s := c.open(t, spdy, streams{stdin: true, noStdout: true, noStderr: true}, "sh", "-c", "cat > /tmp/sent; echo dropped; exit 6")
	s.send("first\n")
	s.send("second\n")
	must(t, s.stdin.Close(), "end of stdin")
	testbed.Same(t, s.exitCode(), 6, "exit code")
	testbed.Same(t, c.exec(t, "cat", "/tmp/sent"), "first\nsecond\n", "stdin was")
}

// numbers is what `seq 1 last` prints.
func numbers(last int) []byte {
	var b []byte
	for i := int64(1); i <= int64(last); i++ {
		b = append(strconv.AppendInt(b, i, 10), '\n')
	}
	return b
}

func streamedOutput(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	// More than all buffers on the way hold, even the largest sockets.
	stdout, stderr := string(numbers(1_500_000)), string(numbers(500_000))
	overEach(t, func(t *testing.T, p protocol) {
		s := c.open(t, p, streams{}, "sh", "-c", "seq 1 500000 >&2 & seq 1 1500000; wait; exit 7")
		testbed.Same(t, s.exitCode(), 7, "exit code")
		if s.stdout.String() != stdout || s.stderr.String() != stderr {
			t.Errorf("%d of %d bytes on stdout, %d of %d on stderr", len(s.stdout.bytes()), len(stdout), len(s.stderr.bytes()), len(stderr))
		}
	})
}

// slowClient is how long a client reads nothing: longer than a daemon may wait for the rest of an
// exited command's output.
const slowClient = 12 * time.Second

// streamedSlowClient has a command that exits long before its output is read.
func streamedSlowClient(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	// More than sockets buffer at first, and less than at most.
	want := string(numbers(700_000))
	overEach(t, func(t *testing.T, p protocol) {
		t.Parallel()
		s := c.open(t, p, streams{stdin: true}, "sh", "-c", "echo begun >&2; read x; seq 1 700000; exit 9")
		n.eventually(t, "the command has begun", func() bool { return s.stderr.String() == "begun\n" })
		s.wire.stall()
		s.send("go\n")
		time.Sleep(slowClient)
		s.wire.resume()
		testbed.Same(t, s.exitCode(), 9, "exit code")
		if s.stdout.String() != want {
			t.Errorf("%d of %d bytes", len(s.stdout.bytes()), len(want))
		}
	})
}

func streamedBackgroundChild(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		t.Parallel() // the child may delay the end of the session
		s := c.open(t, p, streams{stdin: true}, "sh", "-c", "sleep 4331 & echo parent; exit 8")
		if code := s.exitCode(); code != 8 || s.stdout.String() != "parent\n" {
			t.Errorf("exit code %d, stdout %q", code, s.stdout.String())
		}
	})
}

// leaving are the ways in which a client disconnects.
var leaving = map[string]func(*session){
	"it closes":    func(s *session) { s.cancel() },
	"it is killed": func(s *session) { s.wire.cut() },
}

func streamedClientGone(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		for how, leave := range leaving {
			for kind, of := range map[string]streams{"plain": {}, "stdin": {stdin: true}, "terminal": {stdin: true, tty: true}} {
				t.Run(kind+", "+how, func(t *testing.T) {
					s := c.open(t, p, of, "sh", "-c", "trap '' HUP TERM; echo begun; exec sleep 4332")
					s.shows("begun")
					leave(s)
					c.lacks(t, "sleep 4332")
				})
			}
		}
	})
}

// lacks waits until no process of the container has that command line.
func (c *container) lacks(t *testing.T, process string) {
	t.Helper()
	c.eventually(t, process+" is gone", func() bool {
		return !strings.Contains(c.exec(t, "ps", "-o", "args"), process)
	})
}

// streamedFloodingClientGone has a client that sends what its command never reads: more than the
// buffers on the way hold, but not so much that the client's end is not sent.
func streamedFloodingClientGone(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		s := c.open(t, p, streams{stdin: true}, "sh", "-c", "echo begun; exec sleep 4333")
		s.shows("begun")
		s.send(strings.Repeat("flood\n", 24_000))
		time.Sleep(300 * time.Millisecond) // gives the data time to be sent
		s.wire.cut()
		c.lacks(t, "sleep 4333")
	})
}

func streamedDescendantsGone(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	overEach(t, func(t *testing.T, p protocol) {
		for kind, of := range map[string]streams{"plain": {}, "terminal": {stdin: true, tty: true}} {
			t.Run(kind, func(t *testing.T) {
				s := c.open(t, p, of, "sh", "-c", "trap '' HUP TERM; (sleep 4334; true) & echo begun; sleep 4334; true")
				s.shows("begun")
				s.wire.cut()
				c.lacks(t, "sleep 4334")
			})
		}
	})
}

func streamedContainerEnds(t *testing.T, n *node) {
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.start(t, forever())
		s := c.open(t, proto, streams{stdin: true}, "sh", "-c", "echo begun; sleep 600")
		s.shows("begun")
		c.stop(t, time.Second)
		testbed.Fails(t, s.wait(), "the session ended without an error though its command was killed with its container")
	})
}

func streamedParallel(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			s := c.open(t, protocols[i%2], streams{stdin: true}, "sh", "-c", fmt.Sprintf("read x; echo %d:$x; exit %d", i, i))
			_, _ = io.WriteString(s.stdin, "go\n")
			if code := s.exitCode(); code != i || s.stdout.String() != fmt.Sprintf("%d:go\n", i) {
				t.Errorf("session %d: exit code %d, stdout %q", i, code, s.stdout.String())
			}
		})
	}
	wg.Wait()
}
