package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/log"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// Teardown disconnects a pod: CNI DEL, with the configuration that ADD had. It may be repeated.
// Call it before the namespace is released, because plugins work in the namespace. If that no
// longer exists (after a reboot), plugins get a temporary one if there are masquerading rules to
// remove, else none.
//
// r is the result of Setup. Without r (the daemon was killed before it stored r), Teardown uses the
// journal. If ADD had not completed, plugins may fail on objects that do not exist: errors of DEL
// are then logged, and Teardown returns nil unless ctx ended.
func (p *Plugins) Teardown(ctx context.Context, pod Pod, r *Result) error {
	plan, completed, err := p.plan(ctx, pod, r)
	if err != nil {
		return fmt.Errorf("tear down the network: %w", err)
	}
	if err := p.delLocked(ctx, pod, plan); err != nil {
		err = bound(fmt.Errorf("tear down the network of pod %s/%s: %w", pod.Namespace, pod.Name, err))
		if completed || ctx.Err() != nil {
			return err
		}
		log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to tear down network of a pod that was never connected")
		return nil
	}
	p.forget(ctx, pod)
	return nil
}

// plan returns a pod's networks, and whether ADD completed.
func (p *Plugins) plan(ctx context.Context, pod Pod, r *Result) (plan []Attachment, completed bool, err error) {
	if r != nil && len(r.Attachments) > 0 {
		return r.Attachments, true, nil
	}
	entry, err := p.journal.read(pod.ID)
	if err != nil {
		return nil, false, err
	}
	if entry != nil {
		return entry.Attachments, p.completed(pod.ID, entry.Attachments), nil
	}
	plan, err = p.guess(ctx, pod)
	return plan, false, err
}

// guess plans the teardown of a pod without a journal. Most likely ADD never ran, but a power
// failure may have lost the journal and left an address. It uses libcni's cache, or else the
// present configuration.
func (p *Plugins) guess(ctx context.Context, pod Pod) ([]Attachment, error) {
	cached, err := p.cni.GetCachedAttachments(pod.ID)
	if err != nil {
		return nil, err
	}
	if len(cached) > 0 {
		plan := make([]Attachment, len(cached))
		for i, a := range cached {
			plan[i] = attachmentFrom(a)
		}
		return plan, nil
	}
	lists, err := p.networks(ctx, pod.CNIConfDir)
	if err != nil {
		return nil, ctx.Err()
	}
	return attachments(lists, pod)
}

// completed reports whether libcni has the result of every network.
func (p *Plugins) completed(id string, plan []Attachment) bool {
	for i := range plan {
		list, err := plan[i].list()
		if err != nil {
			return false
		}
		r, err := p.cni.GetNetworkListCachedResult(list, plan[i].runtimeConf(id, ""))
		if err != nil || r == nil {
			return false
		}
	}
	return len(plan) > 0
}

// delLocked runs del while no CNI GC runs.
func (p *Plugins) delLocked(ctx context.Context, pod Pod, plan []Attachment) error {
	end, err := p.pluginLock.shared(ctx)
	if err != nil {
		return err
	}
	defer end()
	return p.del(ctx, pod, plan)
}

// del runs DEL for every network, the last first, and continues after errors: one broken network
// must not prevent the release of addresses in the others.
func (p *Plugins) del(ctx context.Context, pod Pod, plan []Attachment) error {
	var errs []error
	for _, a := range slices.Backward(plan) {
		if err := p.delOne(ctx, pod, &a); err != nil {
			errs = append(errs, classify(err))
		}
	}
	return errors.Join(errs...)
}

func (p *Plugins) delOne(ctx context.Context, pod Pod, a *Attachment) (err error) {
	list, err := a.delList()
	if err != nil {
		return err
	}
	netns, replaced := existingNetNS(pod, a), false
	if a.InProcess {
		if err := p.inProcess.DelNetworkList(ctx, list, a.runtimeConf(pod.ID, netns)); err != nil {
			return fmt.Errorf("network %q: %w", a.Network, err)
		}
		return nil
	}
	again := netns
	if netns == "" {
		var release func() error
		if netns, release, err = p.temporaryNetNS(ctx, pod, a); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to replace the lost network namespace of pod; rules for its addresses may remain")
		}
		defer func() { err = errors.Join(err, release()) }()
	}
	if netns != "" {
		if replaced, err = p.restoreAddresses(pod, a, netns); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to restore addresses of pod for its network teardown; rules for them may remain")
		}
	}
	err = p.cni.DelNetworkList(ctx, list, a.runtimeConf(pod.ID, netns))
	if err != nil && netns != "" && !replaced && ctx.Err() == nil {
		// DEL may have failed after it removed the interface: replace the interface and retry.
		if replaced, _ = p.restoreAddresses(pod, a, netns); replaced {
			err = p.cni.DelNetworkList(ctx, list, a.runtimeConf(pod.ID, netns))
		}
	}
	if err != nil && replaced && ctx.Err() == nil {
		// Plugins fail on rules that an earlier DEL removed or a user flushed. The failed DEL has
		// deleted the interface; a DEL without an interface succeeds.
		log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Retrying network teardown without the lost interface of pod; rules for its addresses may remain")
		err = p.cni.DelNetworkList(ctx, list, a.runtimeConf(pod.ID, again))
	}
	if err != nil {
		return fmt.Errorf("network %q: %w", a.Network, err)
	}
	return nil
}

// existingNetNS returns the pod's namespace, or "" if it no longer exists: CNI allows DEL without a
// namespace.
func existingNetNS(pod Pod, a *Attachment) string {
	for _, path := range []string{pod.NetNS, a.NetNS} {
		if path != "" && namespaces.Exists(path) {
			return path
		}
	}
	return ""
}

// delList returns the configuration for DEL with the result of ADD in it, because libcni itself
// reads the result only from its cache.
func (a *Attachment) delList() (*libcni.NetworkConfigList, error) {
	list, err := a.list()
	if err != nil {
		return nil, err
	}
	known, err := version.GreaterThanOrEqualTo(list.CNIVersion, "0.4.0")
	if err != nil || !known || len(a.Result) == 0 {
		return list, nil
	}
	for i, plugin := range list.Plugins {
		if list.Plugins[i], err = libcni.InjectConf(plugin, map[string]any{"prevResult": a.Result}); err != nil {
			return nil, fmt.Errorf("stored configuration of network %q: %w", a.Network, err)
		}
	}
	return list, nil
}

// restoreAddresses puts the addresses of ADD back on a pod's interface. On DEL, bridge and ptp find
// their masquerading rules only by these addresses. They are missing if gVisor has taken them off
// the interface. The interface itself is missing after a killed DEL or in a temporary namespace; a
// new one is then created, which the next DEL removes, and replaced is true.
func (p *Plugins) restoreAddresses(pod Pod, a *Attachment, nsPath string) (replaced bool, err error) {
	addresses, err := p.masqueraded(pod, a)
	if err != nil || len(addresses) == 0 {
		return false, err
	}
	err = namespaces.Do(nsPath, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open a netlink socket: %w", err)
		}
		defer h.Close()
		var link netlink.Link
		if link, replaced, err = ensureInterface(h, a.Interface); err != nil {
			return err
		}
		for _, address := range addresses {
			// The address is never used to send: skip duplicate address detection.
			err := h.AddrAdd(link, &netlink.Addr{IPNet: &address, Flags: unix.IFA_F_NODAD})
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("put %s on %s: %w", &address, a.Interface, err)
			}
		}
		return nil
	})
	return replaced, err
}

// temporaryNetNS returns a new namespace for the DEL of a pod that has lost its own: without a
// namespace, masquerading rules would remain and apply to the next pod with the same address. path
// is "" if there are no such rules. If release fails, a repeated DEL releases the namespace.
func (p *Plugins) temporaryNetNS(ctx context.Context, pod Pod, a *Attachment) (path string, release func() error, err error) {
	release = func() error { return nil }
	if addresses, err := p.masqueraded(pod, a); err != nil || len(addresses) == 0 {
		return "", release, err
	}
	dir := filepath.Join(p.config.CacheDir, "substitutes", pod.ID)
	if err := namespaces.Release(dir); err != nil { // left by a killed daemon
		return "", release, err
	}
	ns, err := namespaces.Create(ctx, namespaces.Request{Dir: dir, Net: true})
	if err != nil {
		return "", release, err
	}
	return ns.Net, func() error { return namespaces.Release(dir) }, nil
}

// ensureInterface returns the interface of that name, or creates it as one end of a veth pair, as
// bridge and ptp do, so the kernel supports that. Deleting one end deletes both.
func ensureInterface(h *netlink.Handle, name string) (link netlink.Link, replaced bool, err error) {
	link, err = h.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "berth-peer"}); err != nil {
			return nil, false, fmt.Errorf("replace missing %s: %w", name, err)
		}
		replaced = true
		link, err = h.LinkByName(name)
	}
	if err != nil {
		return nil, replaced, fmt.Errorf("find %s: %w", name, err)
	}
	return link, replaced, nil
}

// masqueraded returns the addresses of the attachment's interface if a plugin of the network
// creates masquerading rules for them; none if ADD had not completed. In other networks berth
// creates no interface, because host-device would move it to the host.
func (p *Plugins) masqueraded(pod Pod, a *Attachment) ([]net.IPNet, error) {
	list, err := a.list()
	if err != nil || !slices.ContainsFunc(list.Plugins, masquerades) {
		return nil, err
	}
	raw, err := p.result(pod, a, list)
	if err != nil || raw == nil {
		return nil, err
	}
	all, err := addresses(raw, a.Interface)
	if err != nil {
		return nil, fmt.Errorf("network %q: %w", a.Network, err)
	}
	return all, nil
}

func masquerades(plugin *libcni.PluginConfig) bool {
	var config struct {
		IPMasq bool `json:"ipMasq"`
	}
	// A value that is not a boolean belongs to a plugin without masquerading rules.
	err := json.Unmarshal(plugin.Bytes, &config)
	return err == nil && config.IPMasq
}

// result returns the result of ADD, from the pod's record or, if that has none, from libcni's
// cache; nil if it is in neither.
func (p *Plugins) result(pod Pod, a *Attachment, list *libcni.NetworkConfigList) (r types.Result, err error) {
	if len(a.Result) > 0 {
		r, err = create.CreateFromBytes(a.Result)
	} else {
		r, err = p.cni.GetNetworkListCachedResult(list, a.runtimeConf(pod.ID, ""))
	}
	if err != nil {
		return nil, fmt.Errorf("stored result of network %q: %w", a.Network, err)
	}
	return r, nil
}

// forget removes a pod's journal and its entry in active, after its DEL.
func (p *Plugins) forget(ctx context.Context, pod Pod) {
	if err := ignoreMissing(os.Remove(p.journal.path(pod.ID))); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", pod.ID).Warn("Failed to remove network plan of pod")
	}
	p.end(pod)
}
