package remote

import (
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// away is a daemon that is gone, with a pod that a Backend knows of.
func away(t *testing.T) (d *daemon, b *Backend, dir, id string) {
	t.Helper()
	d, dir = newDaemon(t), t.TempDir()
	b = connect(t, d, dir)
	isReady(t, b)
	made := pod(t, b)
	test.Must(t, b.lists.sync(t.Context()))
	d.server.Stop()
	until(t, "down", func() bool { return b.Health().Phase == Down })
	return d, b, dir, made
}

// The age of what is listed goes on over a restart of berth.
func TestAgeOverARestart(t *testing.T) {
	d, b, dir, _ := away(t)
	time.Sleep(50 * time.Millisecond)
	before, known := b.Age()
	if !known || before < 50*time.Millisecond {
		t.Fatalf("the age is %v, %v", before, known)
	}
	again := connect(t, d, dir)
	first, known := again.Age()
	if !known || first < before {
		t.Errorf("the age is %v, %v after a restart, and was %v", first, known, before)
	}
	time.Sleep(20 * time.Millisecond)
	if later, _ := again.Age(); later <= first {
		t.Errorf("the age is %v and was %v", later, first)
	}
}
