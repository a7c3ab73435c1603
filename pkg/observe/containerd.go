package observe

import (
	"context"
	"strings"
	"time"

	"github.com/containerd/log"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// api is what differs between the APIs whose calls are observed.
type api struct {
	// name is what a call is called in logs and metrics, by its full name.
	name func(full string) string
	// log writes the access log.
	log func(ctx context.Context, rpc, handler string, req, resp any, took time.Duration, err error)
}

var cri = api{name: method, log: logCall}

// containerd is the API by which agents of the node see berth's images and pods.
var containerd = api{name: serviceMethod, log: logContainerdCall}

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

// logContainerdCall is not loud about what clients do wrong: a client that does so
// without end must not fill the journal.
func logContainerdCall(ctx context.Context, rpc, _ string, _, _ any, took time.Duration, err error) {
	at, code := log.DebugLevel, status.Code(err)
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		at = log.WarnLevel
	}
	entry := log.G(ctx)
	if !entry.Logger.IsLevelEnabled(at) {
		return
	}
	l := line{"rpc": rpc, "code": code.String(), "took": took.String()}
	if err != nil {
		l.say("error", status.Convert(err).Message())
	}
	entry.WithFields(log.Fields(l)).Log(at, "Call of the containerd API")
}
