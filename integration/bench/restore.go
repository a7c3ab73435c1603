package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// stateMB is the size of the server's state in memory.
const stateMB = 200

// The metrics of restored pods. No other daemon restores pods, so they are compared with the cold
// start of the same pod.
var restoreMetrics = []metric{
	{key: "cold", name: "cold start → served", unit: "ms"},
	{key: "restored", name: "restored → served", unit: "ms"},
	{key: "restoredTwo", name: "two restored in parallel from one checkpoint → both served", unit: "ms"},
	{key: "restoredCompressed", name: "restored from a compressed checkpoint → served", unit: "ms"},
	{key: "write", name: "CheckpointPod", unit: "ms"},
	{key: "writeCompressed", name: "– compressed", unit: "ms"},
	{key: "disk", name: "the checkpoint on disk", unit: "MB"},
	{key: "diskCompressed", name: "– compressed", unit: "MB"},
}

// restoreEntry is one metric. A time until a restored pod serves also has its ratio to a cold
// start.
type restoreEntry struct {
	Key     string    `json:"key"`
	Name    string    `json:"name"`
	Unit    string    `json:"unit"`
	Value   float64   `json:"value"`
	Ratio   *float64  `json:"ratio,omitempty"` // ÷ cold start
	Samples []float64 `json:"samples"`
}

// warmth measures restored pods with gVisor.
type warmth struct {
	testbed.T
	berth   *testbed.Berth
	image   string
	samples samples
}

// restores compares restored pods with pods that start cold, alternately.
func restores(t testbed.T, o options) []restoreEntry {
	registry := testbed.NewRegistry(t, testbed.RegistryOptions{})
	binary := filepath.Join(t.TempDir(), "server")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", binary, "github.com/berth-cri/berth/integration/bench/server")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the server: %v\n%s", err, out)
	}
	program, err := os.ReadFile(binary)
	if err != nil {
		t.Fatalf("%v", err)
	}
	w := &warmth{
		T: t, samples: samples{},
		image: registry.Push(t, "bench/server:1", testbed.Busybox(t, testbed.WithLayer(testbed.File{Path: "server", Mode: fs.FileMode(0o755), Body: program}))),
		berth: testbed.StartBerth(t, testbed.Options{
			Runtimes: map[string]string{testbed.Runsc: testbed.Part(t, testbed.Runsc)}, CNI: testbed.NewCNI(t), Registries: []*testbed.Registry{registry},
			Config: "[log]\nlevel = \"info\"\n",
		}),
	}
	w.berth.Client.Pull(t, testbed.Runsc, w.image)
	for n := range o.fleetRounds() + 1 {
		w.round(n > 0) // the extra costs of a daemon's first pod are not measured
	}
	return w.entries()
}

func (w *warmth) entries() (all []restoreEntry) {
	cold := median(w.samples["cold"][berth])
	for _, m := range restoreMetrics {
		values := w.samples[m.key][berth]
		e := restoreEntry{Key: m.key, Name: m.name, Unit: m.unit, Value: median(values), Samples: values}
		if strings.HasPrefix(m.key, "restored") && cold > 0 {
			v := e.Value / cold
			e.Ratio = &v
		}
		all = append(all, e)
	}
	return all
}

func (w *warmth) round(counts bool) {
	took := map[string]float64{}
	timed := func(key string, do func()) {
		begin := time.Now()
		do()
		took[key] = milliseconds(time.Since(begin))
	}
	var p *testbed.Pod
	var config *runtimeapi.ContainerConfig
	timed("cold", func() {
		p = w.berth.Client.RunPod(w, testbed.PodSpec{Handler: testbed.Runsc, Image: w.image, Command: []string{"/server", strconv.Itoa(stateMB)}, Container: func(c *runtimeapi.ContainerConfig) { config = c }})
		w.served(p.IP(w))
	})
	dirs := map[string]string{}
	for kind, options := range map[string]map[string]string{"": nil, "Compressed": {"compression": "flate-best-speed"}} {
		dir := w.TempDir()
		if err := os.Chmod(dir, 0o700); err != nil {
			w.Fatalf("%v", err)
		}
		timed("write"+kind, func() {
			ctx, cancel := context.WithTimeout(w.Context(), callTimeout)
			defer cancel()
			_, err := w.berth.Client.CheckpointPod(ctx, &runtimeapi.CheckpointPodRequest{PodSandboxId: p.ID, OutputPath: dir, ContainerIds: []string{p.Container.ID}, Options: options})
			testbed.Mustf(w, err, "checkpoint")
		})
		dirs[kind], took["disk"+kind] = dir, onDisk(w, dir)
	}
	p.Remove(w)
	restored := func(dir string) *testbed.Pod {
		again, containers, err := w.berth.Client.TryRestore(w, &runtimeapi.RestorePodRequest{
			CheckpointPath: dir, Config: w.berth.Client.SandboxConfig(""), RuntimeHandler: testbed.Runsc, ContainerConfigs: []*runtimeapi.ContainerConfig{proto.CloneOf(config)},
		})
		testbed.Mustf(w, err, "restore")
		containers[0].Start(w)
		w.served(again.IP(w))
		return again
	}
	for _, kind := range []string{"", "Compressed"} {
		var again *testbed.Pod
		timed("restored"+kind, func() { again = restored(dirs[kind]) })
		again.Remove(w)
	}
	var both [2]*testbed.Pod
	timed("restoredTwo", func() {
		var together sync.WaitGroup
		for i := range both {
			together.Go(func() { both[i] = restored(dirs[""]) })
		}
		together.Wait()
	})
	for _, again := range both {
		again.Remove(w)
	}
	for _, dir := range dirs {
		if err := os.RemoveAll(dir); err != nil {
			w.Fatalf("%v", err)
		}
	}
	if !counts {
		return
	}
	for key, value := range took {
		w.samples.add(key, berth, value)
	}
}

// served waits until the server at that address answers.
func (w *warmth) served(address string) {
	client := &http.Client{Timeout: 200 * time.Millisecond}
	testbed.Poll(w, callTimeout, 2*time.Millisecond, func() error {
		r, err := client.Get("http://" + address + ":8080/")
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, r.Body)
		if r.Body.Close(); err == nil && r.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s is served", r.Status)
		}
		return err
	})
}

// onDisk is the size of the files below a directory in MB.
func onDisk(t testbed.T, dir string) float64 {
	total := int64(0)
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			total += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return float64(total) / 1e6
}

func (r report) restoreTable(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n### Restored pods, runsc %s\n\n", r.Versions[testbed.Runsc])
	fmt.Fprintf(&b, "berth %s; a server with %d MB of state; Linux %s, %d CPUs, load %s before and %s after; %d rounds.\n\n",
		r.Versions[berth], stateMB, r.Machine.Kernel, r.Machine.CPUs, r.Machine.LoadBefore, r.Machine.LoadAfter, r.Fleets)
	b.WriteString("| | | berth | ÷ cold start |\n|---|---|--:|--:|\n")
	for _, e := range r.Restored {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", e.Name, e.Unit, short(&e.Value), ratio(e.Ratio))
	}
	_, err := io.WriteString(out, b.String())
	return err
}
