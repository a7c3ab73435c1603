package runtimeclass

import (
	"path/filepath"
	"testing"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// The classes that come with the project have nothing wrong with them, and select
// nodes by the labels that handlers get.
func TestExamples(t *testing.T) {
	classes := Classes(read(t, filepath.Join("..", "..", "..", "kubernetes", "runtimeclasses.yaml")))
	if len(classes) < 5 {
		t.Errorf("there are %d classes", len(classes))
	}
	var handlers []Handler
	for _, c := range classes {
		handlers = append(handlers, Handler{Name: c.Handler})
		if c.Scheduling == nil || c.Scheduling.NodeSelector[nodelabel.Present(c.Handler)] != nodelabel.True {
			t.Errorf("%s selects nodes by %v", c.Name, c.Scheduling)
		}
		if !Counted(c.RuntimeClass) {
			t.Errorf("pods of %s are not counted: %v", c.Name, c.Overhead)
		}
	}
	for _, f := range Lint(classes, LintOptions{Handlers: handlers}) {
		t.Errorf("%s: %s: %s", f.Where, f.Rule, f.Message)
	}
}
