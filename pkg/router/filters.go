package router

import "google.golang.org/protobuf/proto"

// sandboxFilter is what filters of sandboxes, and of their statistics, have in
// common.
type sandboxFilter interface {
	proto.Message
	GetId() string
}

// containerFilter is the same for containers.
type containerFilter interface {
	sandboxFilter
	GetPodSandboxId() string
}

// completeSandboxFilter makes the short id in a filter a full one.
func (o *owners) completeSandboxFilter(f sandboxFilter) error {
	return completeFilter(f, "id", f.GetId(), &o.sandboxes)
}

// completeContainerFilter makes the short ids in a filter full ones.
func (o *owners) completeContainerFilter(f containerFilter) error {
	if err := completeFilter(f, "id", f.GetId(), &o.containers); err != nil {
		return err
	}
	return completeFilter(f, sandboxField, f.GetPodSandboxId(), &o.sandboxes)
}
