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

// infoKey is where a berth's verbose Status has what it tells of its handlers.
const infoKey = "handlers"

// byStatus is the note of what a daemon says in the CRI's words.
const byStatus = "reported by its daemon"

// telling is the part of that which says what they can do.
type telling struct {
	Default  string `json:"default"`
	Handlers []struct {
		Name         string           `json:"name"`
		Capabilities capability.Table `json:"capabilities"`
	} `json:"handlers"`
}

// Capabilities are what the daemon that a handler leads to says that its handler can
// do: the whole table of another berth, the features of any other daemon. It is empty
// if the daemon does not answer before ctx ends.
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

// capabilitiesOf reads what a daemon says of its handler of that name; empty is its
// default. What a table of a newer berth has and this one does not know is passed on,
// unless it is no table by the words of this one. Pure.
func capabilitiesOf(status *runtimeapi.StatusResponse, name string) capability.Table {
	var t capability.Table
	var all telling
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
