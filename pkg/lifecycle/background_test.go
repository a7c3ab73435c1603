package lifecycle

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackgroundEndsItsWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "kept"))
		b := newBackground(ctx)
		cancel()
		if b.life.Err() != nil || b.life.Value(key{}) != "kept" {
			t.Errorf("the error of life is %v, its value %v", b.life.Err(), b.life.Value(key{}))
		}
		if !b.begin() {
			t.Fatal("begin returns false before close")
		}
		go func() {
			defer b.work.Done()
			<-b.life.Done()
			time.Sleep(closePatience / 2)
		}()
		begun := time.Now()
		if err := b.close(); err != nil || time.Since(begun) != closePatience/2 {
			t.Errorf("close returned after %v: %v", time.Since(begun), err)
		}
		if b.begin() {
			t.Error("begin returns true after close")
		}
	})
}

func TestBackgroundLeavesWhatHangsBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, hang := newBackground(t.Context()), make(chan struct{})
		b.work.Go(func() { <-hang })
		begun := time.Now()
		if err := b.close(); err == nil || time.Since(begun) != closePatience {
			t.Errorf("close returned after %v: %v", time.Since(begun), err)
		}
		close(hang)
	})
}
