package network

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-cri/berth/pkg/engine/network/standard"
)

// Setup connects a pod to the network: CNI ADD, for each configuration in order. If ADD fails,
// Setup rolls back by DEL, with a separate timeout. If DEL fails too, Teardown without a Result
// retries, and so does Collect at the next start.
//
// On a node without a network configuration, or without one of its plugins, Setup returns
// errdefs.ErrUnavailable before it changes anything. If ctx ends, Setup kills the plugin.
func (p *Plugins) Setup(ctx context.Context, pod Pod) (*Result, error) {
	lists, err := p.networks(ctx, pod.CNIConfDir)
	if err != nil {
		return nil, err
	}
	plan, err := attachments(lists, pod)
	if err != nil {
		return nil, err
	}
	for i, list := range lists {
		plan[i].InProcess = p.config.InProcess && p.standard.Serves(list, p.findPlugin)
	}
	end, err := p.pluginLock.shared(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	p.begin(pod)
	if err := p.journal.write(&journalEntry{
		ID: pod.ID, Name: pod.Name, Namespace: pod.Namespace, NetNS: pod.NetNS, CNIConfDir: pod.CNIConfDir, Attachments: plan,
	}); err != nil {
		p.end(pod)
		return nil, fmt.Errorf("set up the network: %w", err)
	}
	result, err := p.add(ctx, pod, plan)
	if err != nil {
		p.undo(ctx, pod, plan)
		return nil, bound(fmt.Errorf("set up the network of pod %s/%s: %w", pod.Namespace, pod.Name, err))
	}
	return result, nil
}

// add runs ADD and stores the results in the plan.
func (p *Plugins) add(ctx context.Context, pod Pod, plan []Attachment) (*Result, error) {
	var first types.Result
	for i := range plan {
		a := &plan[i]
		list, err := a.list()
		if err != nil {
			return nil, err
		}
		r, err := p.serving(a).AddNetworkList(ctx, list, a.runtimeConf(pod.ID, pod.NetNS))
		if err != nil {
			return nil, classify(fmt.Errorf("network %q: %w", a.Network, err))
		}
		if a.Result, err = json.Marshal(r); err != nil {
			return nil, fmt.Errorf("result of network %q: %w", a.Network, err)
		}
		if a.InProcess {
			a.Masqueraded = p.masquerade.Of(standard.Owner(pod.ID, a.Interface))
		}
		if i == 0 {
			first = r
		}
	}
	given, err := addresses(first, defaultInterface)
	if err != nil {
		return nil, err
	}
	if len(given) == 0 {
		return nil, errdefs.ErrInternal.WithMessage(fmt.Sprintf(
			"the CNI plugins gave the pod no address on %s: give the network configuration an ipam section", defaultInterface))
	}
	result := &Result{Raw: plan[0].Result, Attachments: plan}
	for _, address := range given {
		result.IPs = append(result.IPs, address.IP.String())
	}
	return result, nil
}

// serving returns what serves an attachment until its end: a plugin does not find the masquerading
// of package standard, and the other way around.
func (p *Plugins) serving(a *Attachment) *libcni.CNIConfig {
	if a.InProcess {
		return p.inProcess
	}
	return p.cni
}

// Resume restores the masquerading of pods that were connected by earlier runs of the daemon. Call
// it once, before the first Setup and Teardown, with all pods that still have their namespace.
func (p *Plugins) Resume(connected map[string]*Result) error {
	pods := map[string][]netip.Prefix{}
	for id, r := range connected {
		for _, a := range r.Attachments {
			if len(a.Masqueraded) > 0 {
				pods[standard.Owner(id, a.Interface)] = a.Masqueraded
			}
		}
	}
	return p.masquerade.Restore(pods)
}

// undo runs the DEL that follows a failed ADD, because IPAM may have assigned an address.
func (p *Plugins) undo(ctx context.Context, pod Pod, plan []Attachment) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.undoTimeout)
	defer cancel()
	if err := p.del(ctx, pod, plan); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to roll back network of failed pod; will retry")
		p.end(pod)
		return
	}
	p.forget(ctx, pod)
}

// begin and end maintain active: the verb GC must not disconnect these pods.
func (p *Plugins) begin(pod Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.active[pod.ID] = pod
}

func (p *Plugins) end(pod Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.active, pod.ID)
}

// classify adds an error class to errors of libcni itself.
func classify(err error) error {
	if errdefs.IsInternal(err) || errdefs.IsUnavailable(err) {
		return err
	}
	return fmt.Errorf("%w: %w", errdefs.ErrInternal, err)
}
