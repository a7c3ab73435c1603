package capabilities

import (
	"context"
	"os"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/probe/capability"
	"github.com/berth-cri/berth/pkg/probe/rules"
)

// Paths where the kernel and systemd show the node's capabilities.
const (
	hugePagesDir = "/sys/kernel/mm/hugepages"
	// systemdDir exists while systemd is the first process of the node.
	systemdDir = "/run/systemd/system"
)

// crunHandler is the annotation that selects what crun runs a container with.
const crunHandler = "run.oci.handler"

// Table returns what a handler can do for pods on this node, and the source of each answer.
func (a *Checker) Table(ctx context.Context, d *handler.Definition, rt *probe.Runtime, proof probe.Proof) capability.Table {
	f := rules.Facts{Handler: a.Of(ctx, d, rt), Node: a.node(), Proof: proof, Conforms: d.Conforms}
	f.HostNetwork, _ = usesHostNetwork(d)
	f.Krun = d.DefaultAnnotations[crunHandler] == "krun"
	if rt != nil && rt.Kernel().HostProcesses {
		ctx, cancel := context.WithTimeout(ctx, ProbeWait)
		defer cancel()
		lack := a.canMap(ctx, d)
		f.Unsure = lack != nil && ctx.Err() != nil
		f.Handler.UserNamespaces = func() error { return lack }
	}
	return rules.Of(f)
}

// node returns the facts of the node; some of them may change while the daemon runs.
func (a *Checker) node() rules.Node {
	node := a.settings.Node
	n := rules.Node{
		Seccomp: node.Seccomp, Cgroup: 1,
	}
	if node.CgroupUnified {
		n.Cgroup = 2
	}
	if st, err := os.Stat(systemdDir); err == nil {
		n.Systemd = st.IsDir()
	}
	if sizes, err := os.ReadDir(hugePagesDir); err == nil {
		for _, size := range sizes {
			n.HugePages = append(n.HugePages, size.Name())
		}
	}
	return n
}
