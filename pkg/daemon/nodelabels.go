package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/featurefile"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// keepNodeLabels tells the cluster of the handlers from now on, which is when they
// take pods. The file that an earlier daemon left counts until then.
func (d *Daemon) keepNodeLabels(ctx context.Context, metrics prometheus.Registerer) {
	labels := d.options.Config.NodeLabels
	if labels.File == "" {
		return
	}
	handlers := d.lifecycle.Load()
	keeper := featurefile.Start(ctx, featurefile.Options{
		Path: labels.File, Lifetime: labels.Lifetime,
		Content: func() featurefile.Content { return contentOf(handlers.Handlers()) },
	}, handlers.Watch(d.life))
	d.labels.Store(keeper)
	d.teardown.add("node labels", keeper.Close)
	if metrics != nil {
		metrics.MustRegister(keeper)
	}
}

// labelFaults says why the cluster does not hear of the handlers, if it should.
func (d *Daemon) labelFaults() []string {
	keeper := d.labels.Load()
	if keeper == nil {
		return nil
	}
	if err := keeper.Fault(); err != nil {
		return []string{"cannot write the labels of this node's handlers, so those in the cluster go stale: " +
			err.Error() + "; repair the directory, or set node_labels.file to another file or to \"\""}
	}
	return nil
}

// contentOf is what handlers are to the cluster. Pure.
func contentOf(handlers []lifecycle.Handler) featurefile.Content {
	var known []nodelabel.Known
	for _, h := range handlers {
		known = append(known, nodelabel.Known{Name: h.Definition.Name, Phase: h.State.Phase, Can: h.Capabilities})
	}
	return featurefile.Content{Labels: nodelabel.Labels(known), Features: nodelabel.States(known)}
}
