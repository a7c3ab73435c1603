package streaming

import (
	"github.com/containerd/log"
	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

// The Kubernetes libraries log by klog, whose logger may be set before its first
// use only. That a session failed is the client's to know, which is told; here it
// is for who looks for it.
func init() { klog.SetLogger(logr.New(sink{})) }

// sink passes klog's messages to the daemon's log.
type sink struct{ entry *log.Entry }

func (sink) Init(logr.RuntimeInfo) {}

// Enabled leaves out what klog would print with -v only.
func (sink) Enabled(level int) bool { return level <= 0 }

func (s sink) Info(_ int, message string, values ...any) { s.with(values).Debug(message) }

func (s sink) Error(err error, message string, values ...any) {
	s.with(values).WithError(err).Debug(message)
}

func (s sink) WithValues(values ...any) logr.LogSink { return sink{s.with(values)} }

func (s sink) WithName(string) logr.LogSink { return s }

func (s sink) with(values []any) *log.Entry {
	entry := s.entry
	if entry == nil {
		entry = log.L
	}
	for i := 0; i+1 < len(values); i += 2 {
		if name, ok := values[i].(string); ok {
			entry = entry.WithField(name, values[i+1])
		}
	}
	return entry
}
