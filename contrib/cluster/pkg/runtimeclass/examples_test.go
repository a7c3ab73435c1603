package runtimeclass

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// The example classes have no lint findings, and select nodes by the label of presence.
func TestExamples(t *testing.T) {
	classes := Classes(read(t, filepath.Join("..", "..", "..", "kubernetes", "runtimeclasses.yaml")))
	if len(classes) < 5 {
		t.Errorf("the file has %d classes, want 5 or more", len(classes))
	}
	var handlers []Handler
	for _, c := range classes {
		handlers = append(handlers, Handler{Name: c.Handler})
		if c.Scheduling == nil || c.Scheduling.NodeSelector[nodelabel.Present(c.Handler)] != nodelabel.True {
			t.Errorf("%s does not select nodes by the label of presence, but by %v", c.Name, c.Scheduling)
		}
		if !Counted(c.RuntimeClass) {
			t.Errorf("pods of %s are not counted: %v", c.Name, c.Overhead)
		}
	}
	for _, f := range Lint(classes, LintOptions{Handlers: handlers}) {
		t.Errorf("%s: %s: %s", f.Where, f.Rule, f.Message)
	}
}
