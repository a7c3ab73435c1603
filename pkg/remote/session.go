package remote

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"

	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

// session is the monitor's view of one daemon: it checks the daemon, and after a new connection or
// an outage repeats the settings and lists the objects. Only the monitor's loop calls it.
type session struct {
	caller   *caller
	dialer   *dialer
	node     *node
	lists    *lists
	known    *lastknown.Pods
	conflict *atomic.Pointer[string] // see Backend
	changed  func()

	// asked is the number of the connection that was checked last, initialized that of the
	// connection on which back last succeeded.
	asked, initialized uint64
	// compare is set if, after the next list, the daemon's objects must be compared with those of
	// other backends.
	compare bool
}

func (s *session) check(ctx context.Context) observation {
	seen := s.node.ask(ctx)
	s.asked = s.dialer.connections.Load()
	if seen.lost == "" && s.asked != s.initialized && s.conflict.Swap(nil) != nil {
		s.compare = true // another daemon may have replaced it
	}
	if err := s.dialer.failure(); err != nil && seen != (observation{}) { // ignored for a healthy daemon
		seen = observation{lost: err.Error()}
	}
	if why := s.conflict.Load(); why != nil && seen.lost == "" {
		seen = observation{lost: *why}
	}
	if why := s.known.ListFailure(); why != "" && seen == (observation{}) {
		seen.unready = listFailed + why
	}
	seen.reconnected = s.asked != s.initialized
	return seen
}

// back initializes a daemon that is back: it repeats the settings and lists the objects.
func (s *session) back(ctx context.Context) error {
	s.caller.support.Store(&methodSupport{})
	ctx = unmonitored(ctx)
	if err := cmp.Or(s.node.initialize(ctx), s.node.replay(ctx)); err != nil {
		return errors.New("it responds, but cannot be initialized: " + reason(err))
	}
	if err := s.lists.sync(ctx); err != nil {
		return errors.New(listFailed + reason(err))
	}
	s.initialized = s.asked
	if s.compare {
		s.compare = false
		s.changed()
	}
	return nil
}
