package conformance

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var streamingChecks = []check{
	{name: "Exec, Attach and PortForward answer URLs", daemon: true, run: streamingURLs},
	{name: "a URL works once", daemon: true, run: streamingURLOnce},
	{name: "Exec refuses what makes no sense", daemon: true, run: execRefuses},
	{name: "Attach refuses what makes no sense", daemon: true, run: attachRefuses},
	{name: "PortForward refuses what makes no sense", daemon: true, run: portForwardRefuses},

	{name: "exec with separate streams and exit codes", run: streamedExec},
	{name: "exec of a missing program", run: streamedMissingProgram},
	{name: "exec with a terminal", run: streamedTerminal},
	{name: "a terminal has its size from the start", berth: true, run: streamedFirstSize},
	{name: "exec reads stdin to its end", run: streamedStdin},
	{name: "exec with stdin only", run: streamedStdinOnly},
	{name: "exec loses no output", run: streamedOutput},
	{name: "exec waits for a slow client", run: streamedSlowClient},
	{name: "exec ends though its child holds the streams", berth: true, run: streamedBackgroundChild},
	{name: "exec dies with its client", berth: true, run: streamedClientGone},
	{name: "exec dies with its client that sends more than is read", berth: true, run: streamedFloodingClientGone},
	{name: "what an exec started dies with its client", needs: []Ability{ExecDescendants}, berth: true, run: streamedDescendantsGone},
	{name: "exec ends with its container", run: streamedContainerEnds},
	{name: "many execs at once", run: streamedParallel},

	{name: "attach shows what is written from now on", run: attachLive},
	{name: "attach reaches stdin", run: attachStdin},
	{name: "attach to stdin only", berth: true, run: attachStdinOnly},
	{name: "attach to a terminal", run: attachTerminal},
	{name: "stdin_once ends stdin with the first session", run: attachStdinOnce},
	{name: "attach ends with the container and loses nothing", run: attachToTheEnd},
	{name: "a slow attacher blocks nobody", berth: true, run: attachSlow},
	{name: "detaching leaves the container alone", run: attachDetach},

	{name: "port-forward to loopback over IPv4", run: forwardIPv4},
	{name: "port-forward to loopback over IPv6", run: forwardIPv6},
	{name: "port-forward by kubectl's client", daemon: true, run: forwardKubectl},
	{name: "port-forward survives resets", berth: true, run: forwardResets},
	{name: "port-forward over WebSocket", daemon: true, run: forwardWebSocket},
	{name: "port-forward to a port that nobody listens on", run: forwardRefused},
	{name: "port-forward in the host's network", needs: []Ability{HostNetwork}, daemon: true, run: forwardHostNetwork},
	{name: "port-forward passes on half of a close", berth: true, run: forwardHalfClose},
	{name: "port-forward carries many connections", daemon: true, run: forwardMany},
	{name: "port-forward carries bulk both ways", run: forwardBulk},
	{name: "port-forward closes the pod's side when the client is gone", berth: true, run: forwardClientGone},

	{name: "sessions with old containers after a kill -9 of the daemon", alone: true, run: streamingAfterRestart},
}

func streamingURLs(t *testing.T, n *node) {
	p := n.pod(t)
	c := p.start(t, forever())
	urls := map[string]string{
		"Exec":   c.execURL(t, streams{}, "true"),
		"Attach": c.attachURL(t, streams{}),
	}
	f, err := n.Runtime.PortForward(call(t), &runtimeapi.PortForwardRequest{PodSandboxId: p.ID, Port: []int32{80}})
	must(t, err, "PortForward")
	urls["PortForward"] = f.GetUrl()
	for name, u := range urls {
		if parsed, err := url.Parse(u); err != nil || parsed.Hostname() == "" || parsed.Port() == "" || parsed.Port() == "0" {
			t.Errorf("%s answered %q: %v", name, u, err)
		}
	}
}

func streamingURLOnce(t *testing.T, n *node) {
	c := n.pod(t).start(t, forever())
	u := c.execURL(t, streams{}, "echo", "once")
	first := n.session(t, spdy, streams{}, u)
	if code := first.exitCode(); code != 0 || first.stdout.String() != "once\n" {
		t.Fatalf("exit code %d, stdout %q", code, first.stdout.String())
	}
	if err := n.session(t, spdy, streams{}, u).wait(); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("the second use of a URL: %v, want 404", err)
	}
	base, _, _ := strings.Cut(u, "/exec/")
	for _, path := range []string{"/", "/exec/", "/exec/AAAAAAAA", "/attach/AAAAAAAA", "/portforward/AAAAAAAA"} {
		r, err := http.Get(base + path)
		must(t, err, "GET "+path)
		must(t, r.Body.Close(), "GET "+path)
		if r.StatusCode != http.StatusNotFound {
			t.Errorf("GET %s: %s, want 404", path, r.Status)
		}
	}
}

func execRefuses(t *testing.T, n *node) {
	p := n.pod(t)
	c, created, ended := p.start(t, forever()), p.create(t, forever()), p.start(t, sh("exit 0"))
	ended.waitExit(t)
	for _, test := range []struct {
		name string
		r    *runtimeapi.ExecRequest
		want []codes.Code
	}{
		{"no stream", &runtimeapi.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}}, []codes.Code{codes.InvalidArgument}},
		{"a terminal and stderr", &runtimeapi.ExecRequest{ContainerId: c.ID, Cmd: []string{"true"}, Tty: true, Stdout: true, Stderr: true}, []codes.Code{codes.InvalidArgument}},
		{"no id", &runtimeapi.ExecRequest{Cmd: []string{"true"}, Stdout: true}, []codes.Code{codes.InvalidArgument, codes.NotFound}},
		{"unknown id", &runtimeapi.ExecRequest{ContainerId: "nosuchcontainer", Cmd: []string{"true"}, Stdout: true}, []codes.Code{codes.NotFound}},
		{"a CREATED container", &runtimeapi.ExecRequest{ContainerId: created.ID, Cmd: []string{"true"}, Stdout: true}, []codes.Code{codes.FailedPrecondition, codes.NotFound}},
		{"an EXITED container", &runtimeapi.ExecRequest{ContainerId: ended.ID, Cmd: []string{"true"}, Stdout: true}, []codes.Code{codes.FailedPrecondition, codes.NotFound}},
	} {
		_, err := n.Runtime.Exec(call(t), test.r)
		n.rejects(t, err, "Exec with "+test.name, test.want...)
	}
	if n.Berth { // containerd checks this when the session begins
		_, err := n.Runtime.Exec(call(t), &runtimeapi.ExecRequest{ContainerId: c.ID, Stdout: true})
		n.rejects(t, err, "Exec without a command", codes.InvalidArgument)
	}
}

func attachRefuses(t *testing.T, n *node) {
	p := n.pod(t)
	c, created, ended := p.start(t, forever()), p.create(t, forever()), p.start(t, sh("exit 0"))
	ended.waitExit(t)
	for _, test := range []struct {
		name string
		r    *runtimeapi.AttachRequest
		want []codes.Code
	}{
		{"no stream", &runtimeapi.AttachRequest{ContainerId: c.ID}, []codes.Code{codes.InvalidArgument}},
		{"a terminal and stderr", &runtimeapi.AttachRequest{ContainerId: c.ID, Tty: true, Stdout: true, Stderr: true}, []codes.Code{codes.InvalidArgument}},
		{"unknown id", &runtimeapi.AttachRequest{ContainerId: "nosuchcontainer", Stdout: true}, []codes.Code{codes.NotFound}},
		{"a CREATED container", &runtimeapi.AttachRequest{ContainerId: created.ID, Stdout: true}, []codes.Code{codes.FailedPrecondition, codes.NotFound}},
		{"an EXITED container", &runtimeapi.AttachRequest{ContainerId: ended.ID, Stdout: true}, []codes.Code{codes.FailedPrecondition, codes.NotFound}},
	} {
		_, err := n.Runtime.Attach(call(t), test.r)
		n.rejects(t, err, "Attach with "+test.name, test.want...)
	}
	if n.Berth { // the CRI demands that tty matches the container's; containerd does not check it
		_, err := n.Runtime.Attach(call(t), &runtimeapi.AttachRequest{ContainerId: c.ID, Tty: true, Stdout: true})
		n.rejects(t, err, "Attach with a terminal to a container without", codes.InvalidArgument)
	}
}

func portForwardRefuses(t *testing.T, n *node) {
	p, stopped := n.pod(t), n.pod(t)
	stopped.stop(t)
	for _, test := range []struct {
		name string
		r    *runtimeapi.PortForwardRequest
		want []codes.Code
	}{
		{"unknown id", &runtimeapi.PortForwardRequest{PodSandboxId: "nosuchsandbox", Port: []int32{80}}, []codes.Code{codes.NotFound}},
		{"a stopped sandbox", &runtimeapi.PortForwardRequest{PodSandboxId: stopped.ID, Port: []int32{80}}, []codes.Code{codes.FailedPrecondition, codes.NotFound}},
	} {
		_, err := n.Runtime.PortForward(call(t), test.r)
		n.rejects(t, err, "PortForward with "+test.name, test.want...)
	}
	if n.Berth { // containerd checks this when the session begins
		for _, port := range []int32{-1, 0, 65536} {
			_, err := n.Runtime.PortForward(call(t), &runtimeapi.PortForwardRequest{PodSandboxId: p.ID, Port: []int32{port}})
			n.rejects(t, err, "PortForward with port "+itoa(port), codes.InvalidArgument)
		}
	}
}

// streamingAfterRestart restarts the daemon during sessions. The old sessions must not leave
// processes behind, and new sessions with the old containers must work.
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
		_ = s.wait() // an SPDY client does not report a lost connection as an error
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
