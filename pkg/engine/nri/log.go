package nri

import (
	"context"
	"fmt"
	"strings"
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

// A plugin that came too late to be synchronized, or left, connects again: it starts before
// berth serves, or is stopped at that moment.
func (logger) Errorf(ctx context.Context, format string, args ...any) {
	entry := log.G(ctx).WithField("detail", fmt.Sprintf(format, args...))
	if strings.HasPrefix(format, "failed to synchronize plugin") || strings.HasPrefix(format, "failed to start external plugin") {
		entry.Warn("Failed to take in NRI plugin; it can connect again")
		return
	}
	entry.Error(complains)
}
