package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/internal/test/commandtest"
	"github.com/berth-cri/berth/pkg/doctor"
)

// runnable calls f with every command that has no subcommands.
func runnable(c *cobra.Command, f func(*cobra.Command)) {
	for _, below := range c.Commands() {
		runnable(below, f)
	}
	if !c.HasSubCommands() && c.HasParent() {
		f(c)
	}
}

func documentation(t *testing.T) string {
	t.Helper()
	text := test.Value(os.ReadFile("../../docs/cli.md"))(t)
	return string(text)
}

func TestEveryCommandIsDocumented(t *testing.T) {
	text := documentation(t)
	known := map[string]bool{"berth completion": true}
	runnable(newRoot(), func(c *cobra.Command) {
		path := c.CommandPath()
		known[path] = true
		for _, old := range c.Aliases {
			known[c.Parent().CommandPath()+" "+old] = true
		}
		if !strings.Contains(text, "`"+path+"`") && !strings.Contains(text, "`"+path+" ") {
			t.Errorf("docs/cli.md does not have %q", path)
		}
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%q has the short description %q", path, c.Short)
		}
	})
	for line := range strings.Lines(text) {
		for _, command := range documentedIn(line) {
			if !known[command] {
				t.Errorf("docs/cli.md has %q, which is not a command", command)
			}
		}
	}
}

// documentedIn returns the commands in the first cell of a table's row.
func documentedIn(line string) []string {
	if !strings.HasPrefix(line, "| `berth ") {
		return nil
	}
	cell, _, _ := strings.Cut(line[2:], " | ")
	var commands []string
	for part := range strings.SplitSeq(cell, "`") {
		var words []string
		for _, w := range strings.Fields(part) {
			if w == strings.ToLower(w) && !strings.HasPrefix(w, "-") && !strings.HasPrefix(w, "[") {
				words = append(words, w)
			}
		}
		if len(words) > 1 && words[0] == "berth" {
			commands = append(commands, strings.Join(words, " "))
		}
	}
	return commands
}

func TestExamples(t *testing.T) { commandtest.Examples(t, newRoot) }

func TestExitStatusesAreDocumented(t *testing.T) {
	_, table, _ := strings.Cut(documentation(t), "\n| exit status | means |\n|---|---|\n")
	for want, line := range strings.Split(table, "\n")[:commandline.Degraded+2] {
		if strings.HasPrefix(line, fmt.Sprintf("| %d | ", want)) != (want <= commandline.Degraded) {
			t.Errorf("docs/cli.md has %q for exit status %d", line, want)
		}
	}
}

func TestEveryCheckIsDocumented(t *testing.T) {
	text := documentation(t)
	for _, f := range doctor.Examine(doctor.Node{Root: t.TempDir()}) {
		if !strings.Contains(text, "\n| `"+f.Check+"` |") {
			t.Errorf("docs/cli.md does not have the check %q", f.Check)
		}
	}
}

func TestManualPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man8")
	if code, _, stderr := ran(t, "man", dir); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	for page, want := range map[string]string{
		"berth.8": "berth - A CRI daemon", "berth-handler-drain.8": "Cordon a handler", "berth-config-diff.8": "berth config diff",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %v\n%s", page, err, text)
		}
	}
}
