// Package overheads reads what pods have beyond their containers: processes, memory and CPU
// time of shims, supervisors and virtual machines.
package overheads

import (
	"cmp"
	"context"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/overhead"
)

// Readings reads what pods have beyond their containers: cgroups by what is charged
// to them, and processes that are in none of those by what they have of the host's
// memory. It is read when somebody asks, in this process.
type Readings struct {
	pods  *pod.Registry
	shims *shim.Manager
	stats *podstats.Stats
}

// New reads what pods have beyond their containers.
func New(pods *pod.Registry, shims *shim.Manager, stats *podstats.Stats) *Readings {
	return &Readings{pods: pods, shims: shims, stats: stats}
}

// Pods reads all ready pods, by handler.
func (b *Readings) Pods(ctx context.Context) (map[string]overhead.Pods, error) {
	all, err := b.look()
	if err != nil {
		return nil, err
	}
	pods := map[string]overhead.Pods{}
	for _, m := range all.pods {
		name := m.Spec().Definition.Name
		p := pods[name]
		p.Declared = append(p.Declared, declaredFor(m.Sandbox))
		if !m.HostProcesses {
			p.OwnKernel++
		} else if r, err := all.read(m); err == nil {
			p.Readings = append(p.Readings, r)
		} else {
			log.G(ctx).WithError(err).WithField("sandbox", m.ID()).Debug("Failed to read pod overhead")
			p.Unread, p.Why = p.Unread+1, err.Error()
		}
		pods[name] = p
	}
	return pods, nil
}

// declaredFor is what the kubelet reserves for a pod beyond its containers, by what it makes of a
// class's overhead. Of the CPU it sends shares, of which every pod has 2 at least, and a quota,
// which is rounded up to 10m: the shares are closer.
func declaredFor(s *pod.Sandbox) overhead.Declared {
	const leastShares, sharesOfCore, milli = 2, 1024, 1000
	r := cmp.Or(s.Status().Overhead.Msg, s.Config().GetLinux().GetOverhead())
	d := overhead.Declared{Memory: max(r.GetMemoryLimitInBytes(), 0)}
	if shares := r.GetCpuShares(); shares > leastShares {
		d.CPU = (shares*milli + sharesOfCore - 1) / sharesOfCore
	}
	return d
}
