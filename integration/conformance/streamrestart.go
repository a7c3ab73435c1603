package conformance

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// streamingAfterRestart opens sessions with containers that the daemon before
// has started, and looks for what the sessions with that one have left.
func streamingAfterRestart(t *testing.T, n *node) {
	if n.Restart == nil {
		t.Skip("the target gives no way to restart its daemon")
	}
	p := n.pod(t)
	c := p.echoing(t, nil)
	terminal := p.start(t, sh("exec sh -i"), interactive(func(c *runtimeapi.ContainerConfig) { c.Tty = true }))
	served := p.serving(t, "127.0.0.1:8080", "still")
	before := []*session{c.attach(t, spdy, streams{stdin: true})}
	before[0].untilEchoed()
	for _, of := range []streams{{}, {stdin: true}, {stdin: true, tty: true}} {
		s := c.open(t, spdy, of, "sh", "-c", "trap '' HUP TERM PIPE; echo begun; exec sleep 4350")
		s.shows("begun")
		before = append(before, s)
	}
	n.Restart(t)
	for _, s := range before {
		_ = s.wait() // a client over SPDY takes a lost connection for a good end
	}
	if n.Berth {
		c.lacks(t, "sleep 4350")
	}
	overEach(t, func(t *testing.T, proto protocol) {
		s := c.open(t, proto, streams{stdin: true}, "sh", "-c", "read x; echo $x; exit 17")
		s.send("line\n")
		if code := s.exitCode(); code != 17 || s.stdout.String() != "line\n" {
			t.Errorf("exec: exit code %d, stdout %q", code, s.stdout.String())
		}
		a := c.attach(t, proto, streams{stdin: true})
		a.untilEchoed()
		n.eventually(t, "stderr has the line too", func() bool { return strings.Contains(a.stderr.String(), "err:try") })
		tty := terminal.attach(t, proto, streams{stdin: true, tty: true})
		tty.resize(99, 11)
		tty.untilSize("11 99")
		answer, failure, err := p.forward(t).exchange(8080, request)
		must(t, err, "exchange")
		if !strings.HasSuffix(answer, "still\n") || failure != "" {
			t.Errorf("port-forward: answer %q, failure %q", answer, failure)
		}
	})
	served.stop(t, 0)
	c.stop(t, 0)
	terminal.stop(t, 0)
}
