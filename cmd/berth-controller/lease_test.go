package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// paper is a lease that somebody holds.
type paper struct {
	resourcelock.Interface
	record resourcelock.LeaderElectionRecord
	fault  error
}

func (p *paper) Identity() string { return "me" }

func (p *paper) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &p.record, nil, p.fault
}

func (p *paper) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return p.Update(ctx, r)
}

func (p *paper) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	if p.fault == nil {
		p.record = r
	}
	return p.fault
}

// Work may go on only as long as nobody else may begin, and does as long as the lease can be
// renewed: that is first tried a period after the last time.
func TestDeadlines(t *testing.T) {
	if gives := retryPeriod + renewDeadline; gives >= workDeadline || workDeadline >= leaseDuration {
		t.Errorf("a lease of %v is given up after %v, and work ends after %v", leaseDuration, gives, workDeadline)
	}
}

// A term grows by what the server took, and by nothing else.
func TestTermOfLease(t *testing.T) {
	held := resourcelock.LeaderElectionRecord{HolderIdentity: "me"}
	for _, c := range []struct {
		what    string
		do      func(context.Context, *lock) error
		fault   error
		renewed bool
	}{
		{"created", func(ctx context.Context, l *lock) error { return l.Create(ctx, held) }, nil, true},
		{"not created", func(ctx context.Context, l *lock) error { return l.Create(ctx, held) }, context.DeadlineExceeded, false},
		{"renewed", func(ctx context.Context, l *lock) error { return l.Update(ctx, held) }, nil, true},
		{"not renewed", func(ctx context.Context, l *lock) error { return l.Update(ctx, held) }, context.DeadlineExceeded, false},
	} {
		l := &lock{Interface: &paper{fault: c.fault}, term: &term{}}
		if err := c.do(t.Context(), l); !errors.Is(err, c.fault) {
			t.Errorf("%s: %v", c.what, err)
		}
		if got := !l.term.until.IsZero(); got != c.renewed {
			t.Errorf("%s: the term grew: %v", c.what, got)
		}
	}
}

// What somebody else took meanwhile is not given back for them.
func TestRelease(t *testing.T) {
	for holder, want := range map[string]error{"me": nil, "another": errTaken, "": errTaken} {
		p := &paper{record: resourcelock.LeaderElectionRecord{HolderIdentity: holder}}
		l := &lock{Interface: p, term: &term{}}
		if _, _, err := l.Get(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := l.Update(t.Context(), resourcelock.LeaderElectionRecord{}); !errors.Is(err, want) {
			t.Errorf("held by %q: %v, want %v", holder, err, want)
		}
		if want != nil && p.record.HolderIdentity != holder {
			t.Errorf("held by %q, and then by %q", holder, p.record.HolderIdentity)
		}
		if !l.term.until.IsZero() {
			t.Errorf("held by %q: the term grew", holder)
		}
	}
}

// Work ends when the term is over, also if the elector is still busy.
func TestTermEnds(t *testing.T) {
	var of term
	of.renewed(time.Now().Add(-2 * workDeadline))
	ended := make(chan struct{})
	of.begin(func() { close(ended) })
	<-ended
}
