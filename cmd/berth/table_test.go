package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/berth-cri/berth/internal/output"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func TestTablesFitTheTerminal(t *testing.T) {
	tab := &output.Table{Header: []string{"NAME", "STATE", "REASON"}}
	tab.Add("runc (default)", "ready", "")
	tab.Add("kata", "not-ready", strings.Repeat("the shim does not answer ", 10))
	for _, width := range []int{40, 60, 80, 200} {
		for line := range strings.Lines(tab.Text(width)) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Errorf("in %d columns a line has %d: %s", width, n, line)
			}
		}
	}
	if text := tab.Text(60); !strings.Contains(text, "…") || !strings.Contains(text, "runc (default)  ready") {
		t.Errorf("in 60 columns it is\n%s", text)
	}
	if text := tab.Text(0); strings.Contains(text, "…") {
		t.Errorf("without a terminal it is\n%s", text)
	}
	if text := tab.Text(5); !strings.Contains(text, "NAME") {
		t.Errorf("in a terminal that is too narrow it is\n%s", text)
	}
}

// Names have 63 and 253 characters at most, reasons any number: every table fits an
// ordinary terminal all the same, says where it was cut, and is whole when asked.
func TestEveryTableFitsAnOrdinaryTerminal(t *testing.T) {
	long, pod, reason := strings.Repeat("h", 63), strings.Repeat("p", 253), strings.Repeat("the shim does not answer; ", 40)
	handlers := []*adminv1.Handler{{
		Name: long, IsDefault: true, State: adminv1.State_STATE_NOT_READY, Type: "remote", RuntimeName: long, RuntimeVersion: "1.2.3-rc.1+" + long,
		Pods: 12345, Generation: 1 << 40, Path: "/" + reason, Digest: long, Origin: "/" + reason, Reason: reason,
	}}
	pods := []*adminv1.Pod{{Id: long, Namespace: long, Name: pod, Handler: long, Containers: 1000, Pin: &adminv1.Pin{
		Digest: long, Generation: 1 << 40, Binaries: []*adminv1.Binary{{Path: "/" + reason, Version: long}},
	}}}
	var capabilities []handlerCapabilities
	for i := range 20 {
		h := handlerCapabilities{Name: fmt.Sprint(i, long)}
		h.Set(capability.RecursiveReadOnlyMounts, capability.No, capability.Declared, reason)
		capabilities = append(capabilities, h)
	}
	settings := []*adminv1.Setting{{Key: "runtimes." + long + ".options.BinaryName", Value: reason, Origin: "/" + pod}}
	for name, of := range map[string]func(wide bool) *output.Table{
		"handlers": func(wide bool) *output.Table { return handlerTable(handlers, wide) },
		"pods":     func(wide bool) *output.Table { return podTable(pods, wide) },
		"features": func(wide bool) *output.Table { return capabilityMatrix(capabilities, wide) },
		"settings": func(wide bool) *output.Table { return settingTable(settings, wide) },
	} {
		t.Run(name, func(t *testing.T) {
			text := of(false).Text(80)
			for line := range strings.Lines(text) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
					t.Errorf("a line has %d columns: %s", n, line)
				}
			}
			if !strings.Contains(text, "…") {
				t.Errorf("it does not say that it is cut:\n%s", text)
			}
			if whole := of(false).Text(0); strings.Contains(whole, "…") || !strings.Contains(whole, long) {
				t.Errorf("in a pipe it is\n%s", whole)
			}
			if !of(true).Whole || of(false).Whole {
				t.Error("wide is cut, or nothing is")
			}
		})
	}
	// No handler is lost where they are shown below each other.
	text := capabilityMatrix(capabilities, false).Text(80)
	for i := range capabilities {
		if !strings.Contains(text, fmt.Sprint(i, "hhhhh")) {
			t.Errorf("handler %d is not there:\n%s", i, text)
		}
	}
}

// A cell from elsewhere is one line, whatever is in it.
func TestCellsAreOneLine(t *testing.T) {
	tab := &output.Table{Header: []string{"A", "B"}}
	tab.Add("x\ny", "z\t\tz")
	test.Equal(t, "the result", tab.Text(0), "A    B\nx y  z z\n")
}

func TestProgressWithoutATerminalIsLines(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(&out)
	p.step("%d left", 2)
	p.step("%d left", 1)
	p.end()
	test.Equal(t, "the result", out.String(), "2 left\n1 left\n")
}

func TestProgressOnATerminalIsOneLine(t *testing.T) {
	var out bytes.Buffer
	p := &progress{out: &out, width: 10}
	p.step("a long step indeed")
	p.step("short")
	p.end()
	if got := out.String(); strings.Contains(got, "\n") || !strings.HasPrefix(got, "\ra long s…\rshort    \r") || !strings.HasSuffix(got, "\r") {
		t.Errorf("got %q", got)
	}
}

func TestConfigDiffByKey(t *testing.T) {
	live := []*adminv1.Setting{{Key: "a", Value: "1", Origin: "/x:1"}, {Key: "b", Value: "2"}, {Key: "c", Value: "3", Origin: "/x:3"}}
	files := []*adminv1.Setting{{Key: "b", Value: "2"}, {Key: "c", Value: "4", Origin: "/y:1"}, {Key: "d", Value: "5", Origin: "/y:2"}}
	var lines []string
	for _, d := range configDiff(live, files) {
		lines = append(lines, d.String())
	}
	got := strings.Join(lines, "\n")
	if want := "~ c = 4 # running: 3; /y:1\n+ d = 5 # /y:2\n- a = 1 # running, from /x:1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestOutputForms(t *testing.T) {
	m := &adminv1.ListHandlersResponse{Handlers: []*adminv1.Handler{{Name: "runc", State: adminv1.State_STATE_READY, IsDefault: true, Pods: 3, Digest: strings.Repeat("a", 64)}}}
	for form, want := range map[string]string{
		"table": "NAME            STATE  TYPE  RUNTIME  PODS  GEN  REASON\nrunc (default)  ready  -     -        3     0\n",
		"wide":  "aaaaaaaaaaaa", "json": "\"name\": \"runc\"", "yaml": "  name: runc\n",
	} {
		var out bytes.Buffer
		r := &remote{output: form}
		if err := r.print(&out, m, handlerTable(m.GetHandlers(), r.wide()).Write); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %v\n%s", form, err, out.String())
		}
	}
}

// What a runtime wrote is shown in its lines, indented, without what a terminal would act on.
func TestLastFailureOfAHandler(t *testing.T) {
	var out bytes.Buffer
	resp := &adminv1.GetHandlerResponse{Handler: &adminv1.Handler{Name: "runc"}, LastFailure: "first\nsecond\x1b[2J\n"}
	test.Must(t, showHandler(&out, resp, false))
	if want := "last failure:\n  first\n  second\\u001b[2J\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("got %q, want it to end with %q", out.String(), want)
	}
}

func TestUnknownOutputIsAMistakeOfTheCommandLine(t *testing.T) {
	if code, _, stderr := ran(t, "handlers", "-o", "xml"); code != exitConfig || !strings.Contains(stderr, "unknown output format -o xml; use one of table, wide, json, yaml") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

// Without a daemon every command says that, and what to do, and fails.
func TestCommandsWithoutADaemon(t *testing.T) {
	t.Setenv(adminSocketEnv, t.TempDir()+"/none.sock")
	for _, line := range []string{
		"handlers", "handler show", "capabilities", "capabilities x", "capabilities x --self-check", "handler capabilities x", "handler probe x", "handler add x --path /x", "handler edit x --set a=1", "handler rm x",
		"handler cordon x", "handler uncordon x", "handler drain x", "reload --wait", "reload", "config show --live", "config diff", "status", "pods", "whereis x",
	} {
		code, stdout, stderr := ran(t, strings.Fields(line)...)
		if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "berth: berth is not running: socket ") || !strings.Contains(stderr, "systemctl status berth") {
			t.Errorf("%s: exit status %d, %q, %q", line, code, stdout, stderr)
		}
	}
}

func TestDoctorCommand(t *testing.T) {
	root := t.TempDir()
	test.Must(t, os.WriteFile(root+"/c.toml", []byte("x = 1\n"), 0o600))
	code, stdout, stderr := ran(t, "doctor", "--root", root, "-c", root+"/c.toml", "-o", "json")
	if code != exitDegraded || !strings.Contains(stdout, `"worst": "fail"`) || !strings.Contains(stdout, "c.toml:1:1: x: unknown key") || stderr == "" {
		t.Errorf("exit status %d: %s\n%s", code, stdout, stderr)
	}
	if code, stdout, _ := ran(t, "doctor", "--root", root, "-c", root+"/c.toml"); code != exitDegraded || !strings.Contains(stdout, "→ correct it, then \"berth check\"") {
		t.Errorf("exit status %d: %s", code, stdout)
	}
}
