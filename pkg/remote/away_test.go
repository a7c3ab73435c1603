package remote

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// away returns a daemon that was stopped, and a Backend that knows one pod of it.
func away(t *testing.T) (d *daemon, b *Backend, dir, id string) {
	t.Helper()
	d, dir = newDaemon(t), t.TempDir()
	b = connect(t, d, dir)
	isReady(t, b)
	made := pod(t, b)
	test.Must(t, b.lists.sync(t.Context()))
	d.server.Stop()
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	return d, b, dir, made
}

// The age of the last known entries continues across a restart of berth.
func TestAgeOverARestart(t *testing.T) {
	d, b, dir, _ := away(t)
	var before time.Duration
	test.Eventually(t, "the age grows", func() bool {
		age, known := b.Age()
		before = age
		return known && age > 50*time.Millisecond
	})
	again := connect(t, d, dir)
	first, known := again.Age()
	if !known || first < before {
		t.Errorf("the age after a restart is %v, %v; before, it was %v", first, known, before)
	}
	test.Eventually(t, "the age grows on", func() bool { later, _ := again.Age(); return later > first })
}
