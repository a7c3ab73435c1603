package classrun

import (
	"context"
	"errors"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/cmd/internal/adminsocket"
	"github.com/berth-cri/berth/pkg/admin/client"
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
		one, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: h.GetName()})
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

func handlerOf(h *adminv1.GetHandlerResponse) runtimeclass.Handler {
	of := h.GetHandler()
	return runtimeclass.Handler{
		Name: of.GetName(), Default: of.GetIsDefault(), Reason: of.GetReason(),
		State: strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(of.GetState().String(), "STATE_")), "_", "-"),
		Table: client.Capabilities(of),
	}
}
