// Package task speaks with who runs the tasks of pods: supervisors of OCI runtimes, and
// foreign shims. It creates, starts, kills and deletes tasks, learns of their exits, and
// cleans up after shims that died. What both kinds do differently is one contract,
// pod.Runner, with two implementations: supervised and foreign.
package task

import (
	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/oomlog"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/shim"
)

// Service is all that is done with tasks.
type Service struct {
	*runners
	*exits
}

// New gives the tasks of pods, which shims run.
func New(pods *pod.Registry, b *binaries.Binaries, shims *shim.Manager) *Service {
	r := &runners{pods: pods, binaries: b, shims: shims, kernelLog: oomlog.New()}
	return &Service{r, &exits{pods: pods, journals: shims}}
}
