package remote

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

// infoKey is the key of the handlers in the info of another berth's verbose Status.
const infoKey = "handlers"

// byStatus is the note of a capability that the daemon declares in the CRI.
const byStatus = "reported by its daemon"

// handlersInfo is the part of the value of infoKey that has the capabilities.
type handlersInfo struct {
	Default  string `json:"default"`
	Handlers []struct {
		Name         string           `json:"name"`
		Capabilities capability.Table `json:"capabilities"`
	} `json:"handlers"`
}

// Capabilities returns the capabilities that the daemon reports for its handler: the whole table of
// another berth, or the features in the CRI of any other daemon. The table is empty if the daemon
// does not answer before ctx ends.
func (p *Pool) Capabilities(ctx context.Context, d *handler.Definition) capability.Table {
	b, done, err := p.check(d)
	if err != nil {
		return capability.Table{}
	}
	defer done()
	status, err := read[runtimeapi.StatusResponse](ctx, b.node.caller, runtimeapi.RuntimeService_Status_FullMethodName, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return capability.Table{}
	}
	return capabilitiesOf(status, d.RemoteHandler)
}

// capabilitiesOf returns the capabilities of a daemon's handler; an empty name is its default
// handler. The table of a newer berth is passed on if this berth finds it valid. Pure.
func capabilitiesOf(status *runtimeapi.StatusResponse, name string) capability.Table {
	var t capability.Table
	var all handlersInfo
	if json.Unmarshal([]byte(status.GetInfo()[infoKey]), &all) == nil {
		for _, h := range all.Handlers {
			of := cmp.Or(name, all.Default)
			if h.Name == of && h.Capabilities.Validate() == nil {
				t = h.Capabilities
			}
		}
	}
	if !t.Empty() {
		return t
	}
	i := slices.IndexFunc(status.GetRuntimeHandlers(), func(h *runtimeapi.RuntimeHandler) bool { return h.GetName() == name })
	if i < 0 || status.GetRuntimeHandlers()[i].GetFeatures() == nil {
		return t
	}
	says := status.GetRuntimeHandlers()[i].GetFeatures()
	for n, yes := range map[capability.Name]bool{
		capability.UserNamespaces: says.GetUserNamespaces(), capability.RecursiveReadOnlyMounts: says.GetRecursiveReadOnlyMounts(),
	} {
		answer := capability.No
		if yes {
			answer = capability.Yes
		}
		t.Set(n, answer, capability.Declared, byStatus)
	}
	return t
}
