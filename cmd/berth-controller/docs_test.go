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

// Controllers that were installed in different ways have one lease, so that one works.
func TestOneLease(t *testing.T) {
	const want = "berth-system"
	if f := newCommand().Flag("namespace"); f.DefValue != want {
		t.Errorf("the lease is in %q by default, want %q", f.DefValue, want)
	}
	text, err := os.ReadFile("../../contrib/kubernetes/capacity.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for one := range strings.SplitSeq(string(text), "\n---\n") {
		if (strings.Contains(one, "\nkind: Role\n") || strings.Contains(one, "\nkind: RoleBinding\n")) && !strings.Contains(one, "\n  namespace: "+want+"\n") {
			t.Errorf("it has no right to its lease:\n%s", one)
		}
	}
}
