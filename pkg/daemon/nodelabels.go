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

// newNodeLabels returns the keeper of the node's feature file; nil if no file is configured.
func newNodeLabels(labels config.NodeLabels, handlers *lifecycle.Manager) *featurefile.Keeper {
	if labels.File == "" {
		return nil
	}
	return featurefile.New(featurefile.Options{
		Path: labels.File, Lifetime: labels.Lifetime,
		Content: func() featurefile.Content { return contentOf(handlers.Handlers()) },
	})
}

// keepNodeLabels starts to write the feature file, once handlers accept pods. Until then the file
// of an earlier daemon stays in effect.
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

// labelFaults returns why the feature file cannot be written, if it is configured.
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

// contentOf returns the feature file's content for the handlers. Pure.
func contentOf(handlers []lifecycle.Handler) featurefile.Content {
	var known []nodelabel.Known
	var undecided []string
	for _, h := range handlers {
		if h.State.Phase == handler.NotReady && h.State.Reason == rollout.NotProbedYet {
			undecided = append(undecided, h.Definition.Name)
		}
		known = append(known, nodelabel.Known{Name: h.Definition.Name, Phase: h.State.Phase, Default: h.Default, MaxPods: h.Definition.Limits.MaxPods, Can: h.Capabilities})
	}
	return featurefile.Content{Labels: nodelabel.Labels(known), Features: nodelabel.States(known), Lasting: nodelabel.Presence(known), Unprobed: undecided}
}
