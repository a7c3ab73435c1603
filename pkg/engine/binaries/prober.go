package binaries

import (
	"context"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

type prober interface {
	Probe(ctx context.Context, d *handler.Definition) (*probe.Runtime, error)
}
