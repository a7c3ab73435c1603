package client

import (
	"github.com/berth-cri/berth/pkg/probe/capability"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// Capabilities are what the daemon says that a handler can do. Empty if it does not
// say.
func Capabilities(h *adminv1.Handler) capability.Table {
	m := h.GetCapabilities()
	t := capability.Table{
		Isolation: capability.Isolation(m.GetIsolation()), IsolationSource: capability.Source(m.GetIsolationSource()),
		SeccompActions: m.GetSeccompActions(), Conforms: m.GetConforms(),
	}
	for _, c := range m.GetCapabilities() {
		t.Set(capability.Name(c.GetName()), capability.Answer(c.GetAnswer()), capability.Source(c.GetSource()), c.GetNote())
	}
	return t
}
