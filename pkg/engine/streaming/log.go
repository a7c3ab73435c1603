package streaming

import (
	"context"
	"log/slog"

	"github.com/containerd/log"
	"k8s.io/klog/v2"
)

// The Kubernetes libraries log by klog, which accepts a logger only before its first use. Failed
// sessions are reported to their clients, so the daemon's log has them at debug level.
func init() { klog.SetSlogLogger(slog.New(sink{})) }

type sink struct{ attributes []slog.Attr }

// Enabled drops what klog prints with -v only.
func (sink) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (s sink) Handle(ctx context.Context, r slog.Record) error {
	fields := log.Fields{}
	add := func(a slog.Attr) bool { fields[a.Key] = a.Value.Any(); return true }
	for _, a := range s.attributes {
		add(a)
	}
	r.Attrs(add)
	log.G(ctx).WithFields(fields).Debug(r.Message)
	return nil
}

func (s sink) WithAttrs(more []slog.Attr) slog.Handler {
	return sink{append(s.attributes[:len(s.attributes):len(s.attributes)], more...)}
}

func (s sink) WithGroup(string) slog.Handler { return s }
