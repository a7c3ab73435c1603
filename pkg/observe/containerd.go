package observe

import (
	"strings"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
)

// api is what differs between the APIs whose calls are observed.
type api struct {
	// name is what a call is called in logs and metrics, by its full name.
	name func(full string) string
	// level is how loud a call is logged, by its name, and write logs it.
	level func(rpc string, code codes.Code) log.Level
	write func(entry *log.Entry, level log.Level)
}

var cri = api{name: method, level: level, write: func(e *log.Entry, at log.Level) { e.Log(at, "CRI call") }}

// containerd is the API by which agents of the node see berth's images and pods.
var containerd = api{name: serviceMethod, level: containerdLevel, write: func(e *log.Entry, at log.Level) { e.Log(at, "Call of the containerd API") }}

// NewContainerd makes an Observer for calls of containerd's API, which have a metric of
// their own. nil counts nothing.
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

// serviceMethod is "Images.List" for "/containerd.services.images.v1.Images/List": the
// names of methods alone are those of several services.
func serviceMethod(full string) string {
	service, m, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return service[strings.LastIndexByte(service, '.')+1:] + "." + m
}

// containerdLevel is low for what clients do wrong: a client that does so without end
// must not fill the journal.
func containerdLevel(_ string, code codes.Code) log.Level {
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		return log.WarnLevel
	}
	return log.DebugLevel
}
