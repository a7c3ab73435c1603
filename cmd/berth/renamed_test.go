package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// The former name of a flag sets the same, and is in no help.
func TestSelfCheckFlag(t *testing.T) {
	for _, name := range []string{"--self-check", "--canary"} {
		set := false
		c := &cobra.Command{Use: "x", Run: func(*cobra.Command, []string) {}}
		selfCheckFlag(c, &set, "also run a self-check pod")
		c.SetArgs([]string{name})
		if err := c.Execute(); err != nil || !set {
			t.Errorf("%s: %v, %v", name, set, err)
		}
	}
	for _, line := range []string{"features --help", "handler probe --help"} {
		_, help, _ := ran(t, strings.Fields(line)...)
		if !strings.Contains(help, "--self-check") || strings.Contains(help, "canary") {
			t.Errorf("%s: %s", line, help)
		}
	}
}
