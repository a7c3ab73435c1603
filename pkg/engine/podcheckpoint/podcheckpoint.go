// Package podcheckpoint writes checkpoints of whole pods, and restores pods from them. The runtime
// writes and reads the kernel of a pod, with all its containers, at once.
package podcheckpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/probe"
)

// Service serves the CRI's calls for checkpoints of pods. A checkpoint is not removed while a call
// uses it.
type Service struct {
	Deps
	// Durations is the metric of checkpoints and restores.
	Durations *prometheus.HistogramVec

	notes notes
}

// Deps are the dependencies of Service.
type Deps struct {
	Pods         *pod.Registry
	Binaries     *binaries.Binaries
	Tasks        *task.Service
	Images       *image.Store
	Capabilities *capabilities.Checker
	Sandboxes    *sandbox.Service
	Containers   *container.Service
}

// New returns the Service of one engine.
func New(d Deps) *Service {
	return &Service{Deps: d, Durations: NewDurations(), notes: notes(d.Pods.PodCheckpointNotesDir())}
}

// buckets are in seconds: the disk determines the duration of both operations.
var buckets = []float64{.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300}

// NewDurations returns the metric of checkpoints and restores, with all series from the start, so
// that the first failure is an increase.
func NewDurations() *prometheus.HistogramVec {
	v := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "berth_pod_checkpoint_duration_seconds",
		Help:    "Time to write checkpoints of pods (checkpoint) and to restore pods (restore), by result: ok, refused or failed.",
		Buckets: buckets,
	}, []string{"operation", "outcome"})
	for _, operation := range []string{"checkpoint", "restore"} {
		for _, outcome := range []string{ok, refused, failed} {
			v.WithLabelValues(operation, outcome)
		}
	}
	return v
}

// Outcomes of a call. A call is refused because of its request or the pod.
const ok, refused, failed = "ok", "refused", "failed"

// observe records the duration and the outcome of a call.
func (b *Service) observe(operation string, began time.Time, err *error) {
	b.Durations.WithLabelValues(operation, outcome(*err)).Observe(time.Since(began).Seconds())
}

// outcome distinguishes the caller's mistakes from failures. Pure.
func outcome(err error) string {
	switch {
	case err == nil:
		return ok
	case errdefs.IsInvalidArgument(err), errdefs.IsNotFound(err), errdefs.IsNotImplemented(err), errdefs.IsFailedPrecondition(err):
		return refused
	}
	return failed
}

// use protects the checkpoint at a path from removal until release is called. The CRI demands a
// deadline from callers, because the disk determines the duration of a checkpoint or restore.
func use(ctx context.Context, path string) (dir string, release func(), err error) {
	if _, ok := ctx.Deadline(); !ok {
		return "", nil, fmt.Errorf("the call has no deadline; set one: %w", errdefs.ErrInvalidArgument)
	}
	dir = filepath.Clean(path)
	release, err = directory.Use(dir)
	return dir, release, err
}

// checkCapability refuses a handler that cannot write and read whole pods. The CRI demands that the
// code of this error is Unimplemented.
func checkCapability(ctx context.Context, c *capabilities.Checker, d *handler.Definition, rt *probe.Runtime) error {
	if err := c.Refuse(ctx, d, rt, preflight.PodCheckpoints); err != nil {
		return fmt.Errorf("%v: %w", err, errdefs.ErrNotImplemented) // without the class of other refusals
	}
	return nil
}

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

// features returns the features of the first processor in /proc/cpuinfo, sorted; other processors
// have the same. Pure.
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
