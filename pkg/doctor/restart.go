package doctor

import (
	"slices"
	"strings"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// kubeletRestart looks whether the labels are there by which a kubelet that starts keeps its
// pods. What pods take and the node's capacity, only the cluster has.
func kubeletRestart(n Node) []Finding {
	text, err := n.read(n.Config.NodeLabels.File)
	if n.Config.NodeLabels.File == "" || err != nil {
		return []Finding{fine("berth writes no labels for this node; \"kubectl berth audit\" shows whether a restart of the kubelet is safe")}
	}
	lines := strings.Split(text, "\n")
	var gone []string
	for _, d := range n.Config.Runtimes {
		if !slices.Contains(lines, nodelabel.Handler(d.Name)+"="+nodelabel.Ready) {
			gone = append(gone, d.Name)
		}
	}
	if len(gone) > 0 {
		return []Finding{warn("a restart of the kubelet now ends pods of handlers that accept no pods, if their class selects the label ready: "+strings.Join(gone, ", "),
			"do not restart it before \"berth status\" shows them ready, or \"kubectl berth audit\" finds nothing of kubelet-restart-ends-pods")}
	}
	return []Finding{fine("all handlers have the labels that a restarted kubelet looks at; \"kubectl berth audit\" looks at capacity")}
}
