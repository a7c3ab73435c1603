package sandbox

import (
	"context"
	"time"

	"github.com/berth-cri/berth/pkg/engine/pod"
)

// shimPatience is how long a foreign shim may take to end what runs in a sandbox, from
// the first call that it is told in. One that takes longer is killed, whatever it answers:
// nothing else can end what it runs the pod in.
const shimPatience = time.Minute

// insistInterval is the pause before a shim that refused is told again.
const insistInterval = time.Second

// insist has the shim of s end something. It tells it again until it does so, its time is
// up or final says that it never will, and returns the last error.
func insist(ctx context.Context, s *pod.Sandbox, end func(context.Context) error, final func(error) bool) error {
	now := time.Now()
	s.EndAsked.CompareAndSwap(nil, &now)
	// Who asks with less patience than this one asks often: one try is always made.
	ctx, cancel := context.WithTimeout(ctx, max(shimPatience-now.Sub(*s.EndAsked.Load()), pod.KillGrace))
	defer cancel()
	for {
		err := end(ctx)
		if err == nil || final(err) {
			return err
		}
		select {
		case <-time.After(insistInterval):
		case <-ctx.Done():
			return err
		}
	}
}
