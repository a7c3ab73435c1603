package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

func TestParseVersion(t *testing.T) {
	for output, want := range map[string]string{
		"runc version 1.5.2\nspec: 1.3.0\n":                                     "1.5.2",
		"crun version 1.8.1\ncommit: abc\nrundir: /run/crun\n":                  "1.8.1",
		"runsc version release-20250503.0\nspec: 1.1.0-rc.1\n":                  "release-20250503.0",
		"containerd-shim-runc-v2:\n  Version:  v2.4.2\n  Revision: \n":          "v2.4.2",
		"Kata Containers containerd shim (Golang): id: \"x\", version: 3.2, \n": "?",
		"": "?",
	} {
		testbed.Same(t, parseVersion(output), want, "%q: version", output)
	}
}

func TestTable(t *testing.T) {
	kernel := strings.Repeat("Linux version 6.1 ", 10)
	rows := []row{
		{handler: "runc", runtime: "/usr/bin/runc", version: "1.5.2", release: "6.1", kernel: kernel,
			first: 61 * time.Millisecond, next: 40 * time.Millisecond, logLine: "hello"},
		{handler: "kata", runtime: "/opt/kata/bin/shim", version: "3.2", err: errors.New("no /dev/kvm\nmore of it")},
	}
	var brief, full strings.Builder
	printTable(&brief, rows, false)
	printTable(&full, rows, true)
	for _, want := range []string{"61 ms", "40 ms", "hello", "failed: no /dev/kvm", "…"} {
		testbed.Contains(t, brief.String(), want, "the table")
	}
	if strings.Contains(brief.String(), "more of it") {
		t.Errorf("an error is on more than one line:\n%s", &brief)
	}
	testbed.Contains(t, full.String(), strings.TrimSpace(kernel), "-v does not show all")
}

func TestVerdict(t *testing.T) {
	good, bad := row{handler: "runc"}, row{handler: "crun", err: errors.New("it broke")}
	stranger := row{handler: "kata", err: errors.New("no KVM")}
	for name, c := range map[string]struct {
		rows []row
		want string // of the error; empty is success
	}{
		"two good":                {[]row{good, {handler: "gvisor"}}, ""},
		"a stranger may fail":     {[]row{good, {handler: "gvisor"}, stranger}, ""},
		"a required one may not":  {[]row{good, {handler: "gvisor"}, bad}, "it broke"},
		"one is not enough":       {[]row{good}, "only 1"},
		"none is not enough":      {nil, "only 0"},
		"a stranger is no second": {[]row{good, stranger}, "only 1"},
	} {
		err := testbed.Run(t.Context(), "verdict", t.Output(), func(run testbed.T) { verdict(run, c.rows) })
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
