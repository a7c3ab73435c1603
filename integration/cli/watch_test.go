package cli

import (
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// colored matches a control sequence that sets a color.
var colored = regexp.MustCompile(`\x1b\[([0-9;]*;)?3[0-8](;[0-9;]*)?m`)

// TestWatch runs "berth status --watch" on a terminal while pods start, the window is resized, and
// berth stops and starts.
func TestWatch(t *testing.T) {
	n := newNode(t)
	n.berth(t, 0, "handler", "add", "gvisor", "--path", testbed.Part(t, testbed.Runsc))
	watch := n.command(t.Context(), "status", "--watch", "--every", "200ms")
	watch.Env = append(watch.Env, "TERM=xterm-256color", "NO_COLOR=")
	s := testbed.StartOnTerminal(t, watch, 140, 40)
	s.Shows(t, testbed.Showing(`2 of 2 handlers accept pods, 0 pods, 0 starts per minute`, `(?m)^gvisor +ready +0 +0 +0 +- +runsc`, `(?m)^runc \(default\) +ready +0 +0 +0 +- `, `q quits`))

	for _, handler := range []string{"", "", "gvisor"} {
		n.Client.RunPod(t, testbed.PodSpec{Handler: handler, Image: n.Image, Command: []string{"sleep", "600"}})
	}
	const spent = `\d+(\.\d+)?(µs|ms|s)`
	s.Shows(t, testbed.Showing(`2 of 2 handlers accept pods, 3 pods, 3 starts per minute`, `(?m)^gvisor +ready +1 +1 +0 +`+spent, `(?m)^runc \(default\) +ready +2 +2 +0 +`+spent,
		`HANDLER +QUEUE +SANDBOX +PULL +CREATE +START +NETWORK +ROOTFS +PLUGINS +RUNTIME`, `(?m)^gvisor +\S+ +`+spent+` +- +`+spent+` +`+spent, `(?m)sandbox `+spent))

	n.berth(t, 0, "handler", "cordon", "gvisor", "--reason", "disk is being replaced")
	s.Shows(t, testbed.Showing(`1 of 2 handlers`, `(?m)^gvisor +cordoned .* disk is being replaced`))
	s.Resize(t, 60, 12)
	s.Shows(t, testbed.Showing(`(?m)^gvisor +cordoned`, `lines below; q quits, arrows scroll`))
	if strings.Contains(s.Screen(), "the last starts") {
		t.Errorf("12 lines show the whole status:\n%s", s.Screen())
	}
	s.Type(t, "G")
	s.Shows(t, testbed.Showing(`0 lines below`, `default/|POD +HANDLER`))
	s.Resize(t, 140, 40)
	s.Shows(t, testbed.Showing(`(?m)^gvisor +cordoned .* disk is being replaced`, `the last starts`))

	n.Stop(t)
	s.Shows(t, testbed.Showing(`no data from berth since \d\d:\d\d:\d\d \(\d+s\), trying again every 200ms: berth is not running`, `(?m)^gvisor +cordoned`))
	n.Start(t)
	s.Shows(t, testbed.Hiding("no data from berth"))
	s.Shows(t, testbed.Showing(`1 of 2 handlers accept pods, 3 pods`))
	if !colored.MatchString(s.Written()) {
		t.Error("no color was written")
	}
	s.Quits(t)

	for name, end := range map[string]func(*testbed.Terminal, func(syscall.Signal)){
		"ctrl-c":  func(s *testbed.Terminal, _ func(syscall.Signal)) { s.Type(t, "\x03") },
		"SIGHUP":  func(_ *testbed.Terminal, kill func(syscall.Signal)) { kill(syscall.SIGHUP) },
		"SIGTERM": func(_ *testbed.Terminal, kill func(syscall.Signal)) { kill(syscall.SIGTERM) },
	} {
		watch := n.command(t.Context(), "status", "-w")
		watch.Env = append(watch.Env, "TERM=xterm-256color", "NO_COLOR=yes")
		s := testbed.StartOnTerminal(t, watch, 100, 30)
		s.Shows(t, testbed.Showing(`(?m)^gvisor +cordoned`))
		end(s, func(sig syscall.Signal) { watch.Process.Signal(sig) }) //nolint:errcheck // without the signal, the next check fails
		testbed.Checkf(t, s.Ends(t), "after %s", name)
		if colors := colored.FindString(s.Written()); colors != "" {
			t.Errorf("with NO_COLOR a color was written: %q", colors)
		}
	}
}

// TestWatchWithoutTerminal: a pipe gets plain text, and wrong flags are refused.
func TestWatchWithoutTerminal(t *testing.T) {
	n := newNode(t)
	watch := n.command(t.Context(), "status", "--watch", "--every", "200ms")
	out, err := watch.StdoutPipe()
	testbed.Must(t, err)
	testbed.Must(t, watch.Start())
	var text strings.Builder
	for buffer := make([]byte, 4096); strings.Count(text.String(), "starts per minute") < 3; {
		read, err := out.Read(buffer)
		if err != nil {
			t.Fatalf("%v after %q", err, text.String())
		}
		text.Write(buffer[:read])
	}
	testbed.Must(t, watch.Process.Signal(syscall.SIGINT))
	testbed.Checkf(t, watch.Wait(), "interrupted")
	has(t, text.String(), "1 of 1 handlers accept pods, 0 pods", "runc (default)  ready", "\n\nberth ")
	if strings.ContainsAny(text.String(), "\x1b\r") {
		t.Errorf("a pipe gets control characters: %q", text.String())
	}
	for _, wrong := range [][]string{{"-o", "json"}, {"--every", "1ms"}} {
		_, stderr := n.berth(t, 2, append([]string{"status", "--watch"}, wrong...)...)
		has(t, stderr, wrong[0][:2])
	}
	_, stderr := n.berth(t, 2, "status", "--every", "5s")
	has(t, stderr, "--every needs --watch")
}
