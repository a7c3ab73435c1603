package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// interactive gives the container a stdin; change may change its config further.
func interactive(change func(*runtimeapi.ContainerConfig)) containerOption {
	return func(c *runtimeapi.ContainerConfig) {
		c.Stdin = true
		if change != nil {
			change(c)
		}
	}
}

// echoing is a container that answers every line of its stdin.
func (p *pod) echoing(t *testing.T, change func(*runtimeapi.ContainerConfig)) *container {
	t.Helper()
	return p.start(t, sh(`trap 'exit 143' TERM; echo early; while read x; do echo "got:$x"; echo "err:$x" >&2; done; echo ended; exit 14`), interactive(change))
}

// untilEchoed sends lines until one is answered: this proves that the session is attached.
func (s *session) untilEchoed() {
	s.t.Helper()
	tries := 0
	s.n.eventually(s.t, "a line is answered", func() bool {
		tries++
		s.send(fmt.Sprintf("try%d\n", tries))
		return strings.Contains(s.stdout.String(), "got:try")
	})
}

func attachLive(t *testing.T, n *node) {
	dir := t.TempDir()
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		t.Parallel()
		sign := "/in/" + string(proto)
		c := p.start(t, sh("echo early; echo early >&2; while [ ! -e "+sign+" ]; do echo tick; echo tock >&2; sleep 0.1; done; echo late; echo late >&2; sleep 1"),
			mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
		// The streams are read independently, so both must be in the log.
		n.eventually(t, "both streams have been read", func() bool {
			l := readLog(t, c.logFile())
			return strings.Contains(l.stdout, "tick\n") && strings.Contains(l.stderr, "tock\n")
		})
		first, second := c.attach(t, proto, streams{}), c.attach(t, proto, streams{})
		onlyErr := c.attach(t, proto, streams{noStdout: true})
		first.shows("tick\n")
		second.shows("tick\n")
		n.eventually(t, "stderr alone is attached", func() bool { return strings.Contains(onlyErr.stderr.String(), "tock\n") })
		touch(t, dir+"/"+string(proto))
		for _, s := range []*session{first, second, onlyErr} {
			must(t, s.wait(), "the end of an attach with its container")
			if got := s.stderr.String(); strings.Contains(got, "early") || !strings.HasSuffix(got, "late\n") {
				t.Errorf("stderr is %q", got)
			}
			if got := s.stdout.String(); strings.Contains(got, "early") || strings.Contains(got, "tock") || s != onlyErr && !strings.HasSuffix(got, "tick\nlate\n") {
				t.Errorf("stdout is %q", got)
			}
		}
		if l := c.logged(t); !strings.HasSuffix(l.stdout, "late\n") || !strings.HasPrefix(l.stderr, "early\n") || !strings.HasSuffix(l.stderr, "late\n") {
			t.Errorf("logged %q and %q", l.stdout, l.stderr)
		}
	})
}

func attachStdin(t *testing.T, n *node) {
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.echoing(t, nil)
		watcher := c.attach(t, proto, streams{})
		for range 3 { // without stdin_once the container's stdin outlives sessions
			s := c.attach(t, proto, streams{stdin: true})
			s.untilEchoed()
			_ = s.stdin.Close()
			s.wire.cut()
		}
		testbed.Same(t, c.status(t).GetState(), runtimeapi.ContainerState_CONTAINER_RUNNING, "the container is")
		c.stop(t, time.Second)
		must(t, watcher.wait(), "the end of an attach with its container")
	})
}

func attachStdinOnly(t *testing.T, n *node) {
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.echoing(t, nil)
		watcher := c.attach(t, proto, streams{stdin: true})
		watcher.untilEchoed()
		s := c.attach(t, proto, streams{stdin: true, noStdout: true, noStderr: true})
		s.send("blind\n")
		watcher.shows("got:blind")
		n.eventually(t, "stderr has the line too", func() bool { return strings.Contains(watcher.stderr.String(), "err:blind\n") })
		c.stop(t, time.Second)
		must(t, s.wait(), "the end of an attach of stdin only with its container")
	})
}

func attachTerminal(t *testing.T, n *node) {
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.start(t, sh("exec sh -i"), interactive(func(c *runtimeapi.ContainerConfig) { c.Tty = true }))
		s := c.attach(t, proto, streams{stdin: true, tty: true})
		s.resize(66, 22)
		s.untilSize("22 66")
		s.resize(88, 55)
		s.untilSize("55 88")
		s.send("echo sum:$((20+2)) >&2\n")
		s.shows("sum:22")
		again := c.attach(t, proto, streams{stdin: true, tty: true})
		again.untilSize("55 88")
		again.send("exit 15\n")
		must(t, s.wait(), "the end of an attach with its container")
		must(t, again.wait(), "the end of an attach with its container")
		testbed.Same(t, c.waitExit(t).GetExitCode(), 15, "exit code")
	})
}

func attachStdinOnce(t *testing.T, n *node) {
	p := n.pod(t)
	once := func(c *runtimeapi.ContainerConfig) { c.StdinOnce = true }
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.echoing(t, once)
		watcher := c.attach(t, proto, streams{}) // stdin_once ignores a session without stdin
		s := c.attach(t, proto, streams{stdin: true})
		s.untilEchoed()
		s.wire.cut()
		testbed.Same(t, c.waitExit(t).GetExitCode(), 14, "exit code")
		must(t, watcher.wait(), "the end of an attach with its container")
		if got := watcher.stdout.String(); !strings.HasSuffix(got, "ended\n") {
			t.Errorf("the watcher saw %q", got)
		}
	})
	// Over SPDY the client can end its input before the session ends.
	c := p.echoing(t, once)
	s := c.attach(t, spdy, streams{stdin: true})
	s.untilEchoed()
	_ = s.stdin.Close()
	must(t, s.wait(), "the end of an attach with its container")
	if got := s.stdout.String(); !strings.HasSuffix(got, "ended\n") {
		t.Errorf("stdout is %q", got)
	}
	testbed.Same(t, c.waitExit(t).GetExitCode(), 14, "exit code")
}

func attachToTheEnd(t *testing.T, n *node) {
	p := n.pod(t)
	want := string(numbers(200_000))
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.start(t, sh("echo >&2; while read x; do case $x in go*) break;; esac; echo ready >&2; done; i=0; while [ $i -lt 10 ]; do seq $((i*20000+1)) $(((i+1)*20000)); i=$((i+1)); sleep 0.05; done"), interactive(nil))
		s := c.attach(t, proto, streams{stdin: true})
		n.eventually(t, "the session is attached", func() bool {
			s.send("hello\n")
			return strings.Contains(s.stderr.String(), "ready")
		})
		s.send("go\n")
		must(t, s.wait(), "the end of an attach with its container")
		if s.stdout.String() != want {
			t.Errorf("%d of %d bytes", len(s.stdout.bytes()), len(want))
		}
	})
}

// attachSlow has one client that does not read and one that does, while a container writes more
// than all buffers for the slow client hold.
func attachSlow(t *testing.T, n *node) {
	p := n.pod(t)
	dir := t.TempDir()
	const rounds, lines = 60, 100_000
	overEach(t, func(t *testing.T, proto protocol) {
		t.Parallel()
		sign := string(proto)
		c := p.start(t, sh(fmt.Sprintf("while [ ! -e /in/%s ]; do echo tick; sleep 0.1; done; i=0; while [ $i -lt %d ]; do seq 1 %d; i=$((i+1)); sleep 0.1; done; echo done >&2; sleep 3",
			sign, rounds, lines)), mount(&runtimeapi.Mount{ContainerPath: "/in", HostPath: dir}))
		slow, good := c.attach(t, proto, streams{}), c.attach(t, proto, streams{})
		slow.shows("tick\n")
		good.shows("tick\n")
		slow.wire.stall()
		touch(t, dir+"/"+sign)
		round := string(numbers(lines))
		within(t, 90*time.Second, "the container has ended", func() bool {
			return c.status(t).GetState() == runtimeapi.ContainerState_CONTAINER_EXITED
		})
		must(t, good.wait(), "the end of an attach with its container")
		if got := strings.Count(good.stdout.String(), round); got != rounds {
			t.Errorf("the good client saw %d of %d rounds", got, rounds)
		}
		if got := strings.Count(readFile(c.logFile()), fmt.Sprintf(" stdout F %d\n", lines)); got != rounds {
			t.Errorf("%d of %d rounds are in the log", got, rounds)
		}
		slow.wire.resume()
		if err := slow.wait(); err == nil && strings.Count(slow.stdout.String(), round) != rounds {
			t.Error("the slow client lost output without an error")
		}
	})
}

func attachDetach(t *testing.T, n *node) {
	p := n.pod(t)
	overEach(t, func(t *testing.T, proto protocol) {
		c := p.start(t, sh("trap 'exit 21' TERM; i=0; while :; do i=$((i+1)); echo $i; sleep 0.02; done"))
		for _, leave := range leaving {
			s := c.attach(t, proto, streams{})
			s.shows("\n")
			leave(s)
			_ = s.wait() // the client may report any error
		}
		had := len(readFile(c.logFile()))
		n.eventually(t, "the container still writes without a client", func() bool { return len(readFile(c.logFile())) > had })
		c.stop(t, longGrace)
		testbed.Same(t, c.waitExit(t).GetExitCode(), 21, "exit code")
		l := c.logged(t)
		wantNumbers(t, l, l.lines())
	})
}
