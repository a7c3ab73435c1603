package remote

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

// acquaintance is what the monitor's loop does with a daemon: it asks how it is, and
// when it is back tells it what it was told before and lists what it has. Only that
// loop calls it.
type acquaintance struct {
	caller  *caller
	dialer  *dialer
	node    *node
	lists   *lists
	known   *lastknown.Pods
	contest *atomic.Pointer[string] // see Backend
	changed func()

	// asked is which connection was asked last, introduced the one that everything was
	// asked and told on.
	asked, introduced uint64
	// compare says that what the daemon has is to be compared with what others have,
	// once it was listed.
	compare bool
}

func (a *acquaintance) check(ctx context.Context) observation {
	seen := a.node.ask(ctx)
	a.asked = a.dialer.connections.Load()
	if seen.lost == "" && a.asked != a.introduced && a.contest.Swap(nil) != nil {
		a.compare = true // another daemon may have come in its place
	}
	if err := a.dialer.failure(); err != nil && seen != (observation{}) { // not for a daemon that is well
		seen = observation{lost: err.Error()}
	}
	if why := a.contest.Load(); why != nil && seen.lost == "" {
		seen = observation{lost: *why}
	}
	if why := a.known.Trouble(time.Now()); why != "" && seen == (observation{}) {
		seen.unready = cannotSay + why
	}
	seen.anew = a.asked != a.introduced
	return seen
}

// back tells a daemon that is back what it may have forgotten, and lists what it has.
func (a *acquaintance) back(ctx context.Context) error {
	a.caller.abilities.Store(&abilities{})
	ctx = ahead(ctx)
	if err := a.node.introduce(ctx); err != nil {
		return err
	}
	if err := errors.Join(a.lists.sync(ctx), a.node.replay(ctx)); err != nil {
		return err
	}
	a.introduced = a.asked
	if a.compare {
		a.compare = false
		a.changed()
	}
	return nil
}
