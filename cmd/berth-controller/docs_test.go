package main

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Every flag has its row in the part of docs/runtimeclass.md about the program.
func TestEveryFlagIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/runtimeclass.md")
	if err != nil {
		t.Fatal(err)
	}
	_, part, there := strings.Cut(string(text), "\n## Capacity\n")
	part, _, _ = strings.Cut(part, "\n## ")
	if !there {
		t.Fatal("there is no part about capacity")
	}
	newCommand().LocalFlags().VisitAll(func(f *pflag.Flag) {
		if !strings.Contains(part, "| `--"+f.Name+"` |") {
			t.Errorf("--%s has no row", f.Name)
		}
	})
}
