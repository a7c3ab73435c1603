// Package overheads measures the usage of pods beyond their containers: memory and CPU time of
// sandbox processes, shims, supervisors and virtual machines.
package overheads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podstats"
	"github.com/berth-cri/berth/pkg/engine/process"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/overhead"
)

// Readings measures the usage of pods beyond their containers on demand: cgroups by their working
// set, and processes outside of them by their share of the host's memory.
type Readings struct {
	pods  *pod.Registry
	shims *shim.Manager
	stats *podstats.Stats
}

// New returns the Readings of one engine's pods.
func New(pods *pod.Registry, shims *shim.Manager, stats *podstats.Stats) *Readings {
	return &Readings{pods: pods, shims: shims, stats: stats}
}

// Pods measures all ready pods, by handler.
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
			p.Inside++
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

// declaredFor returns the kubelet's reservation for a pod beyond its containers, from its overhead.
// The kubelet sends CPU as shares, of which every pod has at least 2, and as a quota, which it
// rounds up to 10m: the shares are more precise.
func declaredFor(s *pod.Sandbox) overhead.Declared {
	const leastShares, sharesOfCore, milli = 2, 1024, 1000
	r := cmp.Or(s.Status().Overhead.Msg, s.Config().GetLinux().GetOverhead())
	d := overhead.Declared{Memory: max(r.GetMemoryLimitInBytes(), 0)}
	if shares := r.GetCpuShares(); shares > leastShares {
		d.CPU = (shares*milli + sharesOfCore - 1) / sharesOfCore
	}
	return d
}

// passing is the age below which a process is treated as a short call of a runtime.
const passing = time.Second

type measured struct {
	*pod.Sandbox
	parent cgroup.Paths
	all    []*pod.Container
	parts  []overhead.Part
	err    error
}

// snapshot holds all ready pods and all processes of the host.
type snapshot struct {
	*Readings
	processes *process.All
	pods      []*measured
	// groups are cgroups with processes that are not measured one by one: they count as a whole,
	// or belong to containers.
	groups map[string]bool
	// tasks are the first processes of sandboxes and containers, which are not measured either.
	tasks      map[int]bool
	supervised map[string][]*measured
}

// look lists the ready pods with their cgroups, and the host's processes.
func (b *Readings) look() (*snapshot, error) {
	processes, err := process.Look()
	if err != nil {
		return nil, err
	}
	v := &snapshot{Readings: b, processes: processes, groups: map[string]bool{}, tasks: map[int]bool{}, supervised: map[string][]*measured{}}
	for _, p := range b.stats.Measurable(func(*pod.Sandbox) bool { return true }) {
		v.pods = append(v.pods, &measured{Sandbox: p.Sandbox, parent: p.Parent})
	}
	containers := map[string][]*pod.Container{}
	for _, c := range b.pods.Index.AllContainers() {
		containers[c.Spec().Sandbox] = append(containers[c.Spec().Sandbox], c)
	}
	for _, m := range v.pods {
		m.all = containers[m.ID()]
		v.supervised[m.Spec().Supervisor] = append(v.supervised[m.Spec().Supervisor], m)
		m.err = v.count(m)
	}
	return v, nil
}

// count collects the cgroups of a pod. All pods must be counted before processes are measured.
func (v *snapshot) count(m *measured) error {
	for _, c := range m.all {
		v.groups[cgroup.HostPaths(c.Spec().CgroupsPath).MemoryKey()] = true
		if pid := c.Status().PID; pid > 0 && m.HostProcesses {
			v.tasks[pid] = true
		}
	}
	if err := v.countOwn(m); err != nil {
		return err
	}
	beside, err := m.parent.Children()
	if err != nil {
		return err
	}
	for _, group := range beside {
		if v.groups[group.MemoryKey()] {
			continue
		}
		if err := v.add(m, group); err != nil {
			return err
		}
	}
	return nil
}

func (v *snapshot) countOwn(m *measured) error {
	groups, err := podstats.GroupsOf(m.Sandbox)
	if err != nil || len(groups) == 0 {
		return err
	}
	own := groups[0]
	for _, group := range groups {
		if err := v.add(m, group); err != nil {
			return err
		}
	}
	if pid := m.Status().PID; pid > 0 && v.groups[own.MemoryKey()] && m.HostProcesses {
		v.tasks[pid] = true
	}
	return nil
}

// add counts a cgroup, if it exists: some runtimes create none.
func (v *snapshot) add(m *measured, group cgroup.Paths) error {
	used, err := cgroup.ReadStats(group)
	switch {
	case errdefs.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case !used.WorkingSet.Known:
		return fmt.Errorf("this host does not account memory of cgroups: %w", errdefs.ErrNotImplemented)
	}
	cpu := time.Duration(min(used.CPUUsageNano.N, math.MaxInt64)) //nolint:gosec // it is bounded here
	m.parts = append(m.parts, overhead.Part{Key: group.MemoryKey(), Memory: used.WorkingSet.N, CPU: cpu, Pods: 1})
	v.groups[group.MemoryKey()] = true
	return nil
}

// read returns the usage of a pod's counted cgroups and of its processes outside of them.
func (v *snapshot) read(m *measured) (overhead.Reading, error) {
	if m.err != nil {
		return overhead.Reading{}, m.err
	}
	r := overhead.Reading{Pod: m.ID(), Parts: m.parts}
	beside, err := m.parent.Own()
	if err != nil {
		return r, err
	}
	found := map[int]overhead.Part{}
	for _, pid := range beside {
		if err := v.own(found, pid); err != nil {
			return r, err
		}
	}
	if m.OwnShim() {
		pid, err := v.shimOf(m)
		if err != nil {
			return r, err
		}
		if err := v.own(found, pid); err != nil {
			return r, err
		}
	}
	if err := v.share(found, m); err != nil {
		return r, err
	}
	r.Parts = slices.AppendSeq(r.Parts, maps.Values(found))
	return r, nil
}

func (v *snapshot) shimOf(m *measured) (int, error) {
	ep := m.Status().Shim
	if ep == nil || ep.PID == 0 {
		return 0, fmt.Errorf("its shim does not report its process: %w", errdefs.ErrNotImplemented)
	}
	if p, there := v.processes.Find(ep.PID); !there || p.Started != ep.StartTime {
		return 0, fmt.Errorf("its shim is gone: %w", errdefs.ErrNotFound)
	}
	return ep.PID, nil
}

// own adds a process that belongs to one pod alone, and its descendants.
func (v *snapshot) own(found map[int]overhead.Part, pid int) error {
	for _, p := range v.processes.Below(pid, v.elsewhere) {
		if err := note(found, p, 1); err != nil {
			return err
		}
	}
	return nil
}

// share adds the pod's supervisor, which several pods may share, and its descendants. A process
// with the id of the pod or a container in its arguments belongs to the pod alone.
func (v *snapshot) share(found map[int]overhead.Part, m *measured) error {
	key := m.Spec().Supervisor
	pid, there := v.supervisor(key)
	if !there {
		if !m.OwnShim() {
			return fmt.Errorf("its supervisor is not running: %w", errdefs.ErrUnavailable)
		}
		return nil // it starts with the first container
	}
	mine, others := ids(m), []string{}
	for _, o := range v.supervised[key] {
		if o != m {
			others = append(others, ids(o)...)
		}
	}
	for _, p := range v.processes.Below(pid, v.elsewhere) {
		pods := len(v.supervised[key])
		if p.PID != pid && pods > 1 {
			if p.Names(mine...) {
				pods = 1
			} else if p.Names(others...) {
				continue
			}
		}
		if err := note(found, p, pods); err != nil {
			return err
		}
	}
	return nil
}

func ids(m *measured) []string {
	all := []string{m.ID()}
	for _, c := range m.all {
		all = append(all, c.ID())
	}
	return all
}

// supervisor returns the process of a supervisor, which has its directory among its arguments.
func (v *snapshot) supervisor(key string) (int, bool) {
	pid, known := v.shims.Process(key)
	if !known {
		return 0, false
	}
	p, there := v.processes.Find(pid)
	return pid, there && p.Names(v.shims.SupervisorDir(key))
}

// elsewhere reports whether a process is counted with its cgroup, belongs to a container, or is
// short-lived.
func (v *snapshot) elsewhere(p process.Process) bool {
	if v.tasks[p.PID] || v.processes.Age(p) < passing {
		return true
	}
	key, err := cgroup.ProcessKey(p.PID)
	for ; err == nil && len(key) > 1; key = filepath.Dir(key) {
		if v.groups[key] {
			return true
		}
	}
	return false
}

// note adds a process, unless it has exited.
func note(found map[int]overhead.Part, p process.Process, pods int) error {
	memory, err := p.Memory()
	cpu, err2 := p.CPU()
	if err = errors.Join(err, err2); errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found[p.PID] = overhead.Part{Key: fmt.Sprintf("%d:%d", p.PID, p.Started), Memory: memory, CPU: cpu, Pods: pods}
	return nil
}
