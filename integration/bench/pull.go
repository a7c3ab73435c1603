package main

import (
	"context"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// cold is a start of pods on a node that does not have their images.
type cold struct {
	key    string // of the metric
	images []string
	pods   int
	detail bool // CPU, memory and removal are measured too
}

const (
	smallLayers, smallLayer = 60, 200 << 10
	// throttle is the rate of the slow registry for all clients together, 200 Mbit/s, in bytes.
	throttle = 200_000_000 / 8
)

// colds pushes the images of the group "pull".
func colds(t testbed.T, fast *testbed.Registry, size int) []cold {
	t.Helper()
	t.Logf("pull: making images")
	slow := testbed.NewRegistry(t, testbed.RegistryOptions{Wrap: throttled})
	// No two images share a layer, because a start would reuse the unpacked layers of an earlier
	// one.
	all := []cold{
		{key: "coldGzip", images: []string{push(t, fast, "gzip", largeImage(t, types.OCILayer, size, 1))}, pods: 1, detail: true},
		{key: "coldZstd", images: []string{push(t, fast, "zstd", largeImage(t, types.OCILayerZStd, size, 2))}, pods: 1},
		{key: "coldSlow", images: []string{push(t, slow, "gzip", largeImage(t, types.OCILayer, size, 3))}, pods: 1},
		{key: "coldMany", images: []string{push(t, fast, "many", manyLayers(t, smallLayers, smallLayer, 4))}, pods: 1},
		{key: "coldTen", images: []string{push(t, fast, "ten", largeImage(t, types.OCILayer, size, 5))}, pods: 10},
		{key: "coldFour", pods: 4},
	}
	four := &all[len(all)-1]
	for n := range four.pods {
		four.images = append(four.images, push(t, fast, fmt.Sprintf("four%d", n), largeImage(t, types.OCILayer, size/4, uint64(10+n))))
	}
	return all
}

func push(t testbed.T, to *testbed.Registry, name string, image v1.Image) string {
	t.Helper()
	return to.Push(t, "bench/"+name+":1", image)
}

// throttled limits the rate of all answers together to throttle.
func throttled(next http.Handler) http.Handler {
	const burst = 64 << 10
	line := rate.NewLimiter(throttle, burst)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(slowWriter{ResponseWriter: w, ctx: r.Context(), line: line, burst: burst}, r)
	})
}

type slowWriter struct {
	http.ResponseWriter
	ctx   context.Context
	line  *rate.Limiter
	burst int
}

func (w slowWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		part := p[:min(len(p), w.burst)]
		if err := w.line.WaitN(w.ctx, len(part)); err != nil {
			return written, err
		}
		n, err := w.ResponseWriter.Write(part)
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
	}
	return written, nil
}

// pull measures every cold start once. It removes the images only after the last start, because
// ext4 avoids freed inodes for a minute, which would slow down the next start.
func (tr *trial) pull() {
	if tr.contest.options.image >= manyInodes {
		tr.Cleanup(func() { time.Sleep(inodesRest) })
	}
	before := tr.diskUse()
	for _, c := range tr.colds {
		tr.cold(c)
	}
	for _, c := range tr.colds {
		if c.detail {
			tr.removeImages(c)
		}
	}
	for _, c := range tr.colds {
		if !c.detail {
			tr.removeImages(c)
		}
	}
	testbed.Eventually(tr, callTimeout, func() error { // daemons remove some files in the background
		if now := tr.diskUse(); now > before+spare {
			return fmt.Errorf("%d bytes are left of the images", now-before)
		}
		return nil
	})
}

// inodesRest is a little longer than ext4 keeps freed inodes unused.
const inodesRest = 65 * time.Second

// manyInodes is the size of an image above which this slowdown is measurable.
const manyInodes = 200e6

// settle writes all caches to disk, so that a measurement does not wait for earlier writes. With a
// small image, times do not matter, and a sync could wait for other programs.
func (tr *trial) settle() {
	if tr.contest.options.image >= manyInodes {
		unix.Sync()
	}
}

func (tr *trial) cold(c cold) {
	tr.Helper()
	tr.settle()
	testbed.Mustf(tr, resetPeak(tr.peer.PID()), "reset the peak of memory")
	cpu, begin := tr.daemonCPU(), time.Now()
	pods := tr.coldPods(c)
	tr.record(c.key, time.Since(begin).Seconds())
	if c.detail {
		tr.record("coldCPU", tr.daemonCPU()-cpu)
		peak, err := peakMemory(tr.peer.PID())
		testbed.Mustf(tr, err, "read the peak of memory")
		tr.record("coldPeak", peak)
	}
	for _, p := range pods {
		if _, err := p.remove(tr.Context()); err != nil {
			tr.Fatalf("remove a pod: %v", err)
		}
	}
}

// removeImages removes the images of a cold start, and waits until their space is free.
func (tr *trial) removeImages(c cold) {
	tr.Helper()
	tr.settle()
	before := tr.diskUse()
	var size int64
	begin := time.Now()
	for _, image := range c.images {
		spec := &runtimeapi.ImageSpec{Image: image}
		status, err := tr.peer.Client.ImageStatus(tr.Context(), &runtimeapi.ImageStatusRequest{Image: spec})
		if err == nil {
			size += int64(status.GetImage().GetSize()) //nolint:gosec // it is no larger than memory
			_, err = tr.peer.Client.RemoveImage(tr.Context(), &runtimeapi.RemoveImageRequest{Image: spec})
		}
		testbed.Mustf(tr, err, "remove %s", image)
	}
	answered := time.Since(begin)
	// The CRI's size is the compressed size; with the unpacked layers, more than twice as much is
	// freed.
	testbed.Eventually(tr, callTimeout, func() error {
		if freed := before - tr.diskUse(); freed < 2*size {
			return fmt.Errorf("only %d bytes of %v were freed", freed, c.images)
		}
		return nil
	})
	if c.detail {
		tr.record("removeImage", milliseconds(answered))
		tr.record("reclaim", milliseconds(time.Since(begin)))
	}
}

// spare is by how much a daemon's own files may grow.
const spare = 16 << 20

// coldPods starts the pods at the same time, each as a kubelet does.
func (tr *trial) coldPods(c cold) []*pod {
	tr.Helper()
	pods, failed := make([]*pod, c.pods), make([]error, c.pods)
	var all sync.WaitGroup
	for i := range pods {
		all.Go(func() {
			pods[i], _, failed[i] = tr.tryPodOf(tr.Context(), c.images[i%len(c.images)], true)
		})
	}
	all.Wait()
	for _, err := range failed {
		testbed.Mustf(tr, err, "%s", c.key)
	}
	return pods
}

// daemonCPU is the CPU time of the daemon and of its processes that unpack layers.
func (tr *trial) daemonCPU() float64 {
	tr.Helper()
	used := slices.DeleteFunc(procfs.Children(tr.peer.PID()), func(pid int) bool {
		name, _ := os.ReadFile(procfs.Path(pid, "comm"))
		return string(name) != "berth-unpack\n"
	})
	seconds, err := cpuSeconds(append(used, tr.peer.PID()))
	testbed.Mustf(tr, err, "read CPU times")
	return seconds
}

// diskUse is the size of the files below the daemon's root.
func (tr *trial) diskUse() (bytes int64) {
	// A file that is removed during the walk is not an error.
	_ = filepath.WalkDir(tr.peer.Root, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return nil //nolint:nilerr // see above
		}
		if info, err := entry.Info(); err == nil {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}

// resetPeak resets the kernel's record of a process's peak memory.
func resetPeak(pid int) error {
	return os.WriteFile("/proc/"+strconv.Itoa(pid)+"/clear_refs", []byte("5"), 0)
}

// peakMemory is a process's peak memory in MB.
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, err
	}
	kilobytes, err := parseRollup(string(status), "VmHWM")
	return kilobytes / 1024, err
}
