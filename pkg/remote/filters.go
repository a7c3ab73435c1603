package remote

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// selectSandboxes are those that a filter selects, the newest first. Pure.
func (s *state) selectSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var chosen []*runtimeapi.PodSandbox
	for _, id := range slices.Sorted(maps.Keys(s.sandboxes)) {
		p := s.sandboxes[id]
		if strings.HasPrefix(id, f.GetId()) && (f.GetState() == nil || f.GetState().GetState() == p.GetState()) &&
			contains(p.GetLabels(), f.GetLabelSelector()) {
			chosen = append(chosen, p)
		}
	}
	slices.SortStableFunc(chosen, func(a, b *runtimeapi.PodSandbox) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return chosen
}

// selectContainers are those that a filter selects, the newest first. Pure.
func (s *state) selectContainers(f *runtimeapi.ContainerFilter) []*runtimeapi.Container {
	var chosen []*runtimeapi.Container
	for _, id := range slices.Sorted(maps.Keys(s.containers)) {
		c := s.containers[id]
		if strings.HasPrefix(id, f.GetId()) && strings.HasPrefix(c.GetPodSandboxId(), f.GetPodSandboxId()) &&
			(f.GetState() == nil || f.GetState().GetState() == c.GetState()) && contains(c.GetLabels(), f.GetLabelSelector()) {
			chosen = append(chosen, c)
		}
	}
	slices.SortStableFunc(chosen, func(a, b *runtimeapi.Container) int { return cmp.Compare(b.GetCreatedAt(), a.GetCreatedAt()) })
	return chosen
}

// contains says whether labels have all of wanted.
func contains(labels, wanted map[string]string) bool {
	for key, value := range wanted {
		if got, there := labels[key]; !there || got != value {
			return false
		}
	}
	return true
}
