package daemon

import (
	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/router"
)

// firstTable makes the table of a configuration whose handlers all run on one
// backend. Broken handlers are in it with their reason, so that a pod which
// asks for one is told. Pure.
func firstTable(cfg *config.Config, b router.Backend) (*handler.Table[router.Backend], error) {
	var routes []handler.Route[router.Backend]
	for _, d := range cfg.Runtimes {
		routes = append(routes, handler.Route[router.Backend]{
			Backend: b, Definition: d, State: handler.State{Phase: handler.Ready},
		})
	}
	for _, broken := range cfg.Broken {
		routes = append(routes, handler.Route[router.Backend]{
			Backend:    b,
			Definition: &handler.Definition{Name: broken.Name, Origin: broken.Origin},
			State:      handler.State{Phase: handler.NotReady, Reason: broken.Reason},
		})
	}
	return handler.NewTable(1, cfg.DefaultRuntime, routes)
}
