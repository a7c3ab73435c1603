package faults

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
)

// TestKilledWhileVolumesAreMade kills the daemon when it has made one of the volumes
// that an image defines, and later: nothing is left of them.
func TestKilledWhileVolumesAreMade(t *testing.T) {
	t.Parallel()
	runc := "default_runtime = \"runc\"\n[runtimes.runc]\nruntime_path = \"" + testbed.Part(t, testbed.Runc) + "\"\n"
	for _, handler := range []struct {
		name, config string
		pod          func(*runtimeapi.PodSandboxConfig)
	}{
		{name: "runc", config: runc},
		{name: "user namespace", config: runc, pod: withUserNS},
		{name: "shim", config: shimConfig(t, testbed.Part(t, testbed.RuncShim))},
		{name: "copied root", config: runc + "snapshotter = \"native\"\n"},
	} {
		t.Run(handler.name, func(t *testing.T) {
			t.Parallel()
			b := newBed(t, testbed.Options{Tags: []string{"berth_failpoints"}, Config: handler.config})
			b.Image = b.Registry.Push(t, "faults/volumes:1", testbed.Busybox(t,
				testbed.WithConfig(func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}, "/fresh": {}} }),
				testbed.WithLayer(testbed.File{Path: "data", Mode: fs.ModeDir | 0o700}, testbed.File{Path: "data/file", Mode: 0o600, Body: []byte("x")})))
			atRest := b.Rest(t)
			for _, place := range []string{failpoint.ContainerVolumes, failpoint.ContainerMounted, failpoint.ContainerRunning, failpoint.ContainerErased} {
				t.Run(place, func(t *testing.T) {
					b.killedAt(t, place, atRest, handler.pod)
					testbed.Eventually(t, time.Minute, func() error { return b.nothingWritten() })
				})
			}
		})
	}
}

// nothingWritten looks that nothing is left of what containers wrote.
func (b *bed) nothingWritten() error {
	for _, pattern := range []string{"images/rootfs/*/*", "images/trash/*"} {
		left, err := filepath.Glob(filepath.Join(b.Root, pattern))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
	}
	return nil
}
