package daemon

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/featurefile"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/lifecycle"
	"github.com/berth-cri/berth/pkg/lifecycle/rollout"
	"github.com/berth-cri/berth/pkg/nodelabel"
)

// newNodeLabels is what tells the cluster of the handlers; nil without a file for it.
func newNodeLabels(labels config.NodeLabels, handlers *lifecycle.Manager) *featurefile.Keeper {
	if labels.File == "" {
		return nil
	}
	return featurefile.New(featurefile.Options{
		Path: labels.File, Lifetime: labels.Lifetime,
		Content: func() featurefile.Content { return contentOf(handlers.Handlers()) },
	})
}

// keepNodeLabels tells the cluster of the handlers from now on, which is when they
// take pods. The file that an earlier daemon left counts until then.
func (d *Daemon) keepNodeLabels(ctx context.Context, n *node, metrics prometheus.Registerer) {
	if n.labels == nil {
		return
	}
	featurefile.Start(ctx, n.labels, n.handlers.Watch(d.life))
	d.teardown.add("node labels", n.labels.Close)
	if metrics != nil {
		metrics.MustRegister(n.labels)
	}
}

// labelFaults says why the cluster does not hear of the handlers, if it should.
func labelFaults(keeper *featurefile.Keeper) []string {
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
	var undecided []string
	for _, h := range handlers {
		if h.State.Phase == handler.NotReady && h.State.Reason == rollout.NotProbedYet {
			undecided = append(undecided, h.Definition.Name)
		}
		known = append(known, nodelabel.Known{Name: h.Definition.Name, Phase: h.State.Phase, Default: h.Default, MaxPods: h.Definition.Limits.MaxPods, Can: h.Capabilities})
	}
	return featurefile.Content{Labels: nodelabel.Labels(known), Features: nodelabel.States(known), Lasting: nodelabel.Presence(known), Undecided: undecided}
}
