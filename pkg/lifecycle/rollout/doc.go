// Package rollout decides about candidate binaries: which pods get a handler's
// candidate, when too many of them fail, and what promote and abort do.
//
//	c := rollout.New(host)
//	c.Began("runc", attempt)       // a pod got one of the binaries
//	c.Failed("runc", attempt, err) // it did not start: perhaps the rollout is aborted
//	err := c.Promote(ctx, "runc")
//
// What follows from what is known is decided by the pure methods of a View. The
// Host knows what is true, and puts Decisions in force. It imports this package,
// never the other way round.
package rollout
