package main

import (
	"os"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
)

func TestUnknownOutputIsAMistakeOfTheCommandLine(t *testing.T) {
	if code, _, stderr := ran(t, "handlers", "-o", "xml"); code != commandline.Mistaken || !strings.Contains(stderr, "unknown output format -o xml; use one of table, wide, json, yaml") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

// Without a daemon, every command fails with this reason and with a next step.
func TestCommandsWithoutADaemon(t *testing.T) {
	t.Setenv("BERTH_ADMIN_SOCKET", t.TempDir()+"/none.sock")
	for _, line := range []string{
		"handlers", "handler show", "capabilities", "capabilities x", "capabilities x --self-check", "handler probe x", "handler add x --path /x", "handler edit x --set a=1", "handler rm x",
		"handler cordon x", "handler uncordon x", "handler drain x", "reload --wait", "reload", "config show --live", "config diff", "status", "pods", "whereis x",
	} {
		code, stdout, stderr := ran(t, strings.Fields(line)...)
		if code != commandline.Failed || stdout != "" || !strings.HasPrefix(stderr, "berth: berth is not running: socket ") || !strings.Contains(stderr, "systemctl status berth") {
			t.Errorf("%s: exit status %d, %q, %q", line, code, stdout, stderr)
		}
	}
}

func TestDoctorCommand(t *testing.T) {
	root := t.TempDir()
	test.Must(t, os.WriteFile(root+"/c.toml", []byte("x = 1\n"), 0o600))
	code, stdout, stderr := ran(t, "doctor", "--root", root, "-c", root+"/c.toml", "-o", "json")
	if code != commandline.Degraded || !strings.Contains(stdout, `"worst": "fail"`) || !strings.Contains(stdout, "c.toml:1:1: x: unknown key") || stderr == "" {
		t.Errorf("exit status %d: %s\n%s", code, stdout, stderr)
	}
	if code, stdout, _ := ran(t, "doctor", "--root", root, "-c", root+"/c.toml"); code != commandline.Degraded || !strings.Contains(stdout, "→ correct it, then run \"berth check\"") {
		t.Errorf("exit status %d: %s", code, stdout)
	}
}
