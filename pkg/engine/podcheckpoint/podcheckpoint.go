// Package podcheckpoint writes checkpoints of whole pods, and restores pods from them. A pod
// with a kernel of its own is written and read by its runtime as one; of others CRIU writes
// each container while all of them stand still, and they are restored one by one.
package podcheckpoint

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/criu"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
)

// Service is all that is done with checkpoints of pods.
type Service struct {
	Calls
	*interrupted
	// Durations is the metric of both calls.
	Durations *prometheus.HistogramVec
}

// Deps are what pods are written and restored with.
type Deps struct {
	Pods         *pod.Registry
	Binaries     *binaries.Binaries
	Tasks        *task.Service
	Images       *image.Store
	Capabilities *capabilities.Checker
	Sandboxes    *sandbox.Service
	Containers   *container.Service
}

// New serves the pods of a node.
func New(d Deps) *Service {
	n, durations := &notes{pods: d.Pods}, NewDurations()
	return &Service{
		Durations:   durations,
		interrupted: &interrupted{pods: d.Pods, notes: n, sandboxes: d.Sandboxes},
		Calls: Calls{
			durations: durations,
			writing: &writing{
				pods: d.Pods, binaries: d.Binaries, tasks: d.Tasks, capabilities: d.Capabilities, notes: n,
				each: &each{pods: d.Pods, tasks: d.Tasks, dumper: criu.New(d.Pods, d.Tasks, d.Images)},
			},
			restoring: &restoring{
				pods: d.Pods, binaries: d.Binaries, images: d.Images, capabilities: d.Capabilities, sandboxes: d.Sandboxes, containers: d.Containers,
			},
		},
	}
}

// needDeadline is what the CRI asks of callers: both calls take as long as the disk does.
func needDeadline(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		return fmt.Errorf("the call has no deadline; set one: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// need refuses where whole pods cannot be written and read. The CRI has Unimplemented for
// that.
func need(ctx context.Context, c *capabilities.Checker, d *handler.Definition, rt *probe.Runtime) error {
	if err := c.Refuse(ctx, d, rt, preflight.PodCheckpoints); err != nil {
		return fmt.Errorf("%v: %w", err, errdefs.ErrNotImplemented) // not of the class of other refusals
	}
	return nil
}

// handlerOf is what manifests say of what a pod runs on.
func handlerOf(d *handler.Definition, rt *probe.Runtime, all []keep.Binary) manifest.Handler {
	return manifest.Handler{Name: d.Name, Digest: d.Digest(), Runtime: rt.Name, Flags: d.OCI.GlobalFlags, Binaries: programs(all)}
}

func programs(all []keep.Binary) []manifest.Binary {
	var told []manifest.Binary
	for _, b := range all {
		told = append(told, manifest.Binary{Path: b.Path, Version: b.Version, SHA256: b.SHA256})
	}
	return told
}

// thisNode is what manifests say of the machine.
func thisNode() (manifest.Node, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return manifest.Node{}, fmt.Errorf("uname: %w", err)
	}
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return manifest.Node{}, err
	}
	return manifest.Node{
		Architecture: unix.ByteSliceToString(u.Machine[:]), Kernel: unix.ByteSliceToString(u.Release[:]), CPUFeatures: features(string(text)),
	}, nil
}

// features are those of the first processor in /proc/cpuinfo, sorted: the others have the
// same. Pure.
func features(cpuinfo string) []string {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if key = strings.TrimSpace(key); key == "flags" || key == "Features" {
			all := strings.Fields(value)
			slices.Sort(all)
			return slices.Compact(all)
		}
	}
	return nil
}
