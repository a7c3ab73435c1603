package classrun

import (
	"context"
	"errors"
	"math"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-cri/berth/cmd/internal/adminsocket"
	"github.com/berth-cri/berth/pkg/admin/client"
	"github.com/berth-cri/berth/pkg/overhead/podfixed"
	"github.com/berth-cri/berth/pkg/runtimeclass"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// callTimeout bounds calls that should take no time at all.
const callTimeout = 30 * time.Second

// live are the handlers of the running daemon.
func live(ctx context.Context, socket string) ([]runtimeclass.Handler, error) {
	daemon, err := client.New(adminsocket.Path(socket))
	if err != nil {
		return nil, err
	}
	defer daemon.Close()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nil, daemon.Explain(err)
	}
	var all []runtimeclass.Handler
	for _, h := range list.GetHandlers() {
		one, err := measured(ctx, daemon, h.GetName())
		if status.Code(err) == codes.NotFound {
			continue // it went meanwhile
		}
		if err != nil {
			return nil, daemon.Explain(err)
		}
		all = append(all, handlerOf(one))
	}
	if len(all) == 0 {
		return nil, errors.New("the running daemon has no handlers; see \"berth status\"")
	}
	return all, nil
}

// measured is a handler with what its pods use. The first time that a daemon is asked
// it knows their memory, and a moment later their CPU use, too.
func measured(ctx context.Context, daemon *client.Client, name string) (*adminv1.GetHandlerResponse, error) {
	const moment = 1200 * time.Millisecond
	for asked := false; ; asked = true {
		h, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: name})
		best := h.GetOverhead().GetBest()
		if err != nil || asked || best == nil || best.GetCpuNanocores() != nil {
			return h, err
		}
		select {
		case <-time.After(moment):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func handlerOf(h *adminv1.GetHandlerResponse) runtimeclass.Handler {
	of := h.GetHandler()
	return runtimeclass.Handler{
		Name: of.GetName(), Default: of.GetIsDefault(), Reason: of.GetReason(),
		State: strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(of.GetState().String(), "STATE_")), "_", "-"),
		Table: client.Capabilities(of), Overhead: overheadOf(h.GetOverhead().GetBest()),
	}
}

// overheadOf is nil without data.
func overheadOf(e *adminv1.OverheadEstimate) *runtimeclass.Measurement {
	if e == nil {
		return nil
	}
	in := func(scale resource.Scale, format resource.Format, d *adminv1.OverheadDistribution) runtimeclass.Distribution {
		quantity := func(n uint64) resource.Quantity {
			q := resource.NewScaledQuantity(int64(min(n, math.MaxInt64)), scale) //nolint:gosec // it is bounded here
			q.Format = format
			return *q
		}
		return runtimeclass.Distribution{P50: quantity(d.GetP50()), P95: quantity(d.GetP95()), Max: quantity(d.GetMax())}
	}
	m := &runtimeclass.Measurement{
		Pods: int(e.GetPods()), Memory: in(0, resource.BinarySI, e.GetMemoryBytes()), CPU: in(resource.Nano, resource.DecimalSI, e.GetCpuNanocores()),
	}
	m.Memory.Source, m.CPU.Source = podfixed.Kind(e.GetMemorySource()), podfixed.Kind(e.GetCpuSource())
	if e.GetCpuPods() != e.GetPods() {
		m.CPU.Pods = int(e.GetCpuPods())
	}
	return m
}
