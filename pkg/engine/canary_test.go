package engine

import "testing"

// What the program ends with, however early it is asked to.
func TestCanaryEnds(t *testing.T) {
	for status, want := range map[uint32]bool{0: true, 2: true, 143: true, 1: false, 127: false, 137: false} {
		if got := endedAsAsked(status); got != want {
			t.Errorf("endedAsAsked(%d) = %v, want %v", status, got, want)
		}
	}
}
