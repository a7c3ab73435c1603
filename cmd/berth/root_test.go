package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/commandline"
)

// ran runs a command line and returns its exit status and output.
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

// A wrong command line is reported in one line, without the usage. Nearly every such line names
// the help to read.
func TestWrongCommandLines(t *testing.T) {
	for line, want := range map[string]string{
		"serv":                 `berth: unknown command "serv" for "berth" (did you mean "serve"?); see "berth --help"`,
		"stauts":               `berth: unknown command "stauts" for "berth" (did you mean "status"?); see "berth --help"`,
		"nothing of the sort":  `berth: unknown command "nothing" for "berth"; see "berth --help"`,
		"handle show --wide":   `berth: unknown command "handle" for "berth" (did you mean "handler"?); see "berth --help"`,
		"handler shwo -x":      `berth: unknown command "shwo" for "berth handler" (did you mean "show"?); see "berth handler --help"`,
		"--nothing":            `berth: unknown flag: --nothing; see "berth --help"`,
		"serve -x":             `berth: unknown shorthand flag: 'x' in -x; see "berth serve --help"`,
		"serve --stop-timeout": `berth: flag needs an argument: --stop-timeout; see "berth serve --help"`,
		"serve more":           `berth: "berth serve" takes no arguments, got "more"; see "berth serve --help"`,
		"handler cordon":       `berth: missing argument: berth handler cordon NAME; see "berth handler cordon --help"`,
		"handler cordon a b":   `berth: too many arguments, from "b" on: berth handler cordon NAME; see "berth handler cordon --help"`,
		"handler show a b":     `berth: too many arguments, from "b" on: berth handler show [NAME]; see "berth handler show --help"`,
		"config import":        `berth: missing argument: berth config import FILE|DIRECTORY...; see "berth config import --help"`,
		"serve --set engine":   `berth: --set "engine": write it as key=value`,
		"check my.toml":        `berth: unknown argument "my.toml"; use a flag for the configuration file: berth check -c my.toml; see "berth check --help"`,
		"config shw":           `berth: unknown command "shw" for "berth config" (did you mean "show"?); see "berth config --help"`,
		"handler ls":           `berth: unknown command "ls" for "berth handler" (did you mean "berth handlers"?); see "berth handler --help"`,
		"pod list":             `berth: unknown command "list" for "berth pod" (did you mean "berth pods"?); see "berth pod --help"`,
		"config list":          `berth: unknown command "list" for "berth config"; see "berth config --help"`,
		"config show -o json":  `berth: -o json needs --live; see "berth config show --help"`,
		"config default more":  `berth: "berth config default" takes no arguments, got "more"; see "berth config default --help"`,
	} {
		t.Run(line, func(t *testing.T) {
			code, stdout, stderr := ran(t, strings.Fields(line)...)
			if code != commandline.Mistaken || stdout != "" || stderr != want+"\n" {
				t.Errorf("exit status %d\n%s\n%s", code, stdout, stderr)
			}
		})
	}
}

// A path that does not exist, or a registry that does not answer, is reported as one line. For a path
// it ends with what to do.
func TestWrongPaths(t *testing.T) {
	const missing, listed = "open /nonexist: no such file or directory; ", "\"berth checkpoint list\" lists the checkpoints"
	t.Setenv("BERTH_ADMIN_SOCKET", serveAdmin(t, &daemonOf{}))
	for line, want := range map[string]string{
		"pod restore /nonexist --name a":            "/nonexist has no checkpoint of a pod that can be read: " + missing + listed,
		"checkpoint ls /nonexist":                   missing + "give a directory that has checkpoints",
		"checkpoint inspect /nonexist":              "/nonexist has no checkpoint of a pod that can be read: " + missing + listed,
		"checkpoint rm /nonexist":                   "remove /nonexist: " + missing + listed,
		"image import /nonexist":                    missing + "give the path of an archive, or - for standard input",
		"config import /nonexist":                   "stat /nonexist: no such file or directory; give files or directories of CRI-O or containerd",
		"serve -c /nonexist":                        "/nonexist: the file does not exist; correct the configuration, then run \"berth check\"",
		"checkpoint pull localhost:1/x:y /nonexist": "pull localhost:1/x:y: ",
	} {
		if code, stdout, stderr := ran(t, strings.Fields(line)...); code == 0 || stdout != "" || strings.Count(stderr, "\n") != 1 || !strings.HasPrefix(stderr, "berth: "+want) || strings.Contains(stderr, "invalid argument") {
			t.Errorf("%s: exit status %d\n%s\n%s", line, code, stdout, stderr)
		}
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

// Every command that prints a result has -o, and refuses an unknown format. Without a
// daemon, a command that needs one fails with status 1 and a next step.
func TestEveryCommandsFormsAndStatus(t *testing.T) {
	t.Setenv("BERTH_ADMIN_SOCKET", t.TempDir()+"/nobody")
	withoutResult := map[string]bool{"berth serve": true, "berth man": true, "berth config default": true, "berth image pull": true, "berth image export": true, "berth help": true}
	goOn := map[string]bool{"berth config show": true, "berth checkpoint rm": true, "berth checkpoint prune": true} // these work without a daemon
	arguments := map[string][]string{
		"add": {"--path", "/x", "x"}, "edit": {"--set", "a=1", "x"}, "import": {"/nowhere"}, "show": nil,
		"rm": {"x"}, "probe": {"x"}, "cordon": {"x"}, "uncordon": {"x"}, "drain": {"x"}, "promote": {"x"}, "abort": {"x"}, "whereis": {"x"},
		"inspect": {"x"}, "pull": {"x"}, "export": {"x", "--file", "-"}, "berth image import": {"-"},
		"checkpoint": {"x", "--to", "/x"}, "restore": {"x", "--replace"}, "berth checkpoint list": {}, "berth checkpoint prune": {"/x", "--keep", "1"},
		"berth checkpoint push": {"x", "registry.test/x:1"}, "berth checkpoint pull": {"registry.test/x:1", "--as", "x"}, "berth checkpoint rm": {"/x"},
	}
	asks := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			walk(below)
		}
		if c.HasSubCommands() || c.Parent() == nil || withoutResult[c.CommandPath()] || c.DisableFlagParsing || c.Parent().Name() == "completion" {
			return
		}
		line := slices.Concat(strings.Fields(c.CommandPath())[1:], arguments[c.Name()])
		if its, ok := arguments[c.CommandPath()]; ok {
			line = slices.Concat(strings.Fields(c.CommandPath())[1:], its)
		}
		if code, _, stderr := ran(t, append(line, "-o", "xml")...); code != commandline.Mistaken || !strings.Contains(stderr, "unknown output format -o xml; use one of ") {
			t.Errorf("%v -o xml: exit status %d: %s", line, code, stderr)
		}
		if code, _, stderr := ran(t, append(line, "--nothing")...); code != commandline.Mistaken || !strings.Contains(stderr, "--help") {
			t.Errorf("%v --nothing: exit status %d: %s", line, code, stderr)
		}
		if c.Flags().Lookup("admin-socket") == nil || goOn[c.CommandPath()] {
			return
		}
		asks++
		code, stdout, stderr := ran(t, append(line, "-o", "json")...)
		if code != commandline.Failed || stdout != "" || !strings.Contains(stderr, "berth is not running") || !strings.Contains(stderr, "systemctl status berth") {
			t.Errorf("%v without a daemon: exit status %d: %s%s", line, code, stdout, stderr)
		}
	}
	walk(newRoot())
	if asks < 16 {
		t.Errorf("only %d commands need a daemon", asks)
	}
}
