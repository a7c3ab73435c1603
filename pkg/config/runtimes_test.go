package config

import (
	"testing"
	"time"
)

// A default that is new must not change the digests of Definitions: pods of older
// builds would all count as outdated.
func TestNewDefaultsLeaveDigestsAlone(t *testing.T) {
	for timeout, want := range map[time.Duration]time.Duration{DefaultSelfCheckTimeout: 0, time.Minute: time.Minute} {
		if got := unlessDefault(timeout); got != want {
			t.Errorf("%v became %v", timeout, got)
		}
	}
	table := defaultTable()
	if d := table.definition("runc", Engine{}); d.SelfCheckTimeout != 0 {
		t.Errorf("a handler that says nothing has %v", d.SelfCheckTimeout)
	}
}
