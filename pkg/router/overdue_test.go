package router

import (
	"context"
	"testing"

	"github.com/berth-cri/berth/pkg/handler"
)

type noOutcomes struct{ Outcomes }

func (noOutcomes) NotStarted(string, handler.Attempt, error) {}

// A start that ends at its caller's deadline is reported once.
func TestStartThatEndsAtTheDeadline(t *testing.T) {
	c := &startCounter{outcomes: noOutcomes{}}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), 0)
		if reported := c.watch(ctx, "runc", handler.Attempt{})(); !reported {
			t.Fatal("the start will be reported twice")
		}
		cancel()
	}
}
