package main

import (
	"bytes"
	"strings"
	"testing"
)

// ran runs a command line.
func ran(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, mistakes bytes.Buffer
	code = run(t.Context(), args, &out, &mistakes)
	return code, out.String(), mistakes.String()
}

func TestHelpListsEveryCommand(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help"}, {}} {
		code, stdout, stderr := ran(t, args...)
		if code != 0 || stderr != "" {
			t.Errorf("%q: exit status %d, %q", args, code, stderr)
		}
		for _, command := range []string{"serve", "check", "config", "version", "completion"} {
			if !strings.Contains(stdout, "\n  "+command+" ") {
				t.Errorf("%q does not list %s:\n%s", args, command, stdout)
			}
		}
	}
}

// What the user did wrong is one line, without a page of usage, and says where
// to read on.
func TestWrongCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"serv":                 `berth: unknown command "serv" for "berth" (did you mean "serve"?); see "berth --help"`,
		"nothing of the sort":  `berth: unknown command "nothing" for "berth"; see "berth --help"`,
		"--nothing":            `berth: unknown flag: --nothing; see "berth --help"`,
		"serve -x":             `berth: unknown shorthand flag: 'x' in -x; see "berth serve --help"`,
		"serve --stop-timeout": `berth: flag needs an argument: --stop-timeout; see "berth serve --help"`,
		"serve more":           `berth: unknown command "more" for "berth serve"; see "berth serve --help"`,
		"serve --set engine":   `berth: --set "engine": write it as key=value`,
		"check my.toml":        `berth: unknown argument "my.toml"; a configuration file is named by a flag: berth check -c my.toml; see "berth check --help"`,
		"config shw":           `berth: unknown command "shw" for "berth config"; see "berth config --help"`,
		"config default more":  `berth: unknown command "more" for "berth config default"; see "berth config default --help"`,
	} {
		t.Run(line, func(t *testing.T) {
			code, stdout, stderr := ran(t, strings.Fields(line)...)
			if code != exitConfig || stdout != "" || stderr != want+"\n" {
				t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
}

func TestGroupsPrintTheirHelp(t *testing.T) {
	code, stdout, _ := ran(t, "config")
	if code != 0 || !strings.Contains(stdout, "\n  show ") {
		t.Errorf("exit status %d\n%s", code, stdout)
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, stdout, _ := ran(t, "completion", shell); code != 0 || !strings.Contains(stdout, "berth") {
			t.Errorf("%s: exit status %d", shell, code)
		}
	}
}
