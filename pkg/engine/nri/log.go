package nri

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/log"
	nrilog "github.com/containerd/nri/pkg/log"
)

// logHere sends what the adaptation logs to the daemon's log. It has one logger
// for the whole process.
var logHere = sync.OnceFunc(func() { nrilog.Set(logger{}) })

type logger struct{}

const (
	said      = "NRI message"
	complains = "NRI reported a problem"
)

// What it says at level info is about its own steps, which is detail here.
func (logger) Debugf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Trace(said)
}

func (logger) Infof(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Debug(said)
}

func (logger) Warnf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Warn(complains)
}

func (logger) Errorf(ctx context.Context, format string, args ...any) {
	log.G(ctx).WithField("detail", fmt.Sprintf(format, args...)).Error(complains)
}
