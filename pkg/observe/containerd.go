package observe

import (
	"strings"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// api holds the differences between the observed APIs.
type api struct {
	// name returns the name of a call in logs and metrics, from its full name.
	name func(full string) string
	// level returns the log level of a call, by its name; write logs the call.
	level func(rpc string, code codes.Code) log.Level
	write func(entry *log.Entry, level log.Level)
}

var cri = api{name: method, level: level, write: func(e *log.Entry, at log.Level) { e.Log(at, "CRI call") }}

// containerd is the API that serves berth's images and pods to the node's agents.
var containerd = api{name: serviceMethod, level: containerdLevel, write: func(e *log.Entry, at log.Level) { e.Log(at, "Call of the containerd API") }}

// NewContainerd returns an Observer for calls of containerd's API, with its own metric. If metrics
// is nil, it counts nothing.
func NewContainerd(metrics prometheus.Registerer) *Observer {
	o := &Observer{api: containerd}
	if metrics != nil {
		o.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_containerd_api_calls_total",
			Help: "Completed calls of containerd's API.",
		}, []string{"rpc", "code"})
		metrics.MustRegister(o.calls)
	}
	return o
}

// serviceMethod returns "Images.List" for "/containerd.services.images.v1.Images/List": several
// services share names of methods.
func serviceMethod(full string) string {
	service, m, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service[strings.LastIndexByte(service, '.')+1:] + "." + m
}

// containerdLevel is warning only for berth's own failures: clients may repeat mistakes endlessly.
func containerdLevel(_ string, code codes.Code) log.Level {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return log.WarnLevel
	}
	return log.DebugLevel
}
