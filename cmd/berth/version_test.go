package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/daemon"
)

func TestVersion(t *testing.T) {
	build := daemon.ThisBuild()
	code, stdout, _ := ran(t, "version")
	if code != 0 || !strings.HasPrefix(stdout, "berth version "+build.Version) || strings.Count(stdout, "\n") != 1 {
		t.Errorf("exit status %d: %q", code, stdout)
	}
	if code, flag, _ := ran(t, "--version"); code != 0 || flag != stdout {
		t.Errorf("--version: exit status %d: %q", code, flag)
	}
	code, stdout, _ = ran(t, "version", "-o", "json")
	var got daemon.Build
	if err := json.Unmarshal([]byte(stdout), &got); code != 0 || err != nil || got != build {
		t.Errorf("exit status %d, error %v: %s", code, err, stdout)
	}
}
