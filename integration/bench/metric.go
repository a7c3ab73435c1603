package main

import (
	"slices"
)

// The groups of metrics, which are the values of --only.
const (
	groupPod      = "pod"
	groupExec     = "exec"
	groupExit     = "exit"
	groupCounts   = "counts"
	groupParallel = "parallel"
	groupMemory   = "memory"
	groupLists    = "lists"
	groupIdle     = "idle"
	groupRecovery = "recovery"
	groupPull     = "pull"
	groupRestore  = "restore"
)

var groups = []string{
	groupPod, groupExec, groupExit, groupCounts,
	groupParallel, groupMemory, groupLists, groupIdle, groupRecovery, groupPull, groupRestore,
}

// metric is a number that is compared.
type metric struct {
	key  string // in JSON and in samples
	name string // in the table
	unit string
}

// metrics has all metrics in the order of the table.
var metrics = []metric{
	{key: "ready", name: "pod ready (run + create + start)", unit: "ms"},
	{key: "run", name: "– RunPodSandbox", unit: "ms"},
	{key: "create", name: "– CreateContainer", unit: "ms"},
	{key: "start", name: "– StartContainer", unit: "ms"},
	{key: "end", name: "stop and remove a pod", unit: "ms"},
	{key: "stop", name: "– StopPodSandbox", unit: "ms"},
	{key: "remove", name: "– RemovePodSandbox", unit: "ms"},
	{key: "parallel1", name: "pods ready, one at a time", unit: "pods/s"},
	{key: "parallel4", name: "pods ready, 4 in parallel", unit: "pods/s"},
	{key: "parallel8", name: "pods ready, 8 in parallel", unit: "pods/s"},
	{key: "helpers", name: "helper memory per pod (PSS)", unit: "MB"},
	{key: "daemon", name: "daemon, anonymous memory", unit: "MB"},
	{key: "idle", name: "CPU under a polling kubelet", unit: "% of a core"},
	{key: "exec", name: "ExecSync(true)", unit: "ms"},
	{key: "bare", name: "the same by the bare runtime", unit: "ms"},
	{key: "overBare", name: "ExecSync ÷ bare runtime", unit: "×"},
	{key: "exit", name: "process exit → STOPPED event", unit: "ms"},
	{key: "listPods", name: "ListPodSandbox", unit: "ms"},
	{key: "listContainers", name: "ListContainers", unit: "ms"},
	{key: "listStats", name: "ListContainerStats", unit: "ms"},
	{key: "listPodStats", name: "ListPodSandboxStats", unit: "ms"},
	{key: "forks", name: "processes and threads started per pod life", unit: ""},
	{key: "flushes", name: "disk flushes per pod life", unit: ""},
	{key: "coldGzip", name: "cold pod ready, 5 large layers, gzip", unit: "s"},
	{key: "coldZstd", name: "– the same, zstd", unit: "s"},
	{key: "coldSlow", name: "– gzip, registry of 200 Mbit/s", unit: "s"},
	{key: "coldMany", name: "– 60 small layers", unit: "s"},
	{key: "coldFour", name: "4 cold pods ready, 4 images of a quarter of the size", unit: "s"},
	{key: "coldTen", name: "10 cold pods ready, 1 image", unit: "s"},
	{key: "coldCPU", name: "CPU for a cold pod, gzip", unit: "s"},
	{key: "coldPeak", name: "peak of the daemon's memory meanwhile (RSS)", unit: "MB"},
	{key: "removeImage", name: "RemoveImage of that image", unit: "ms"},
	{key: "reclaim", name: "– until its disk space is free", unit: "ms"},
	{key: "recovery", name: "kill -9 → all pods listed RUNNING", unit: "ms"},
}

// samples has the measured values: metric → peer → values.
type samples map[string]map[string][]float64

func (s samples) add(key, peer string, value float64) {
	if s[key] == nil {
		s[key] = map[string][]float64{}
	}
	s[key][peer] = append(s[key][peer], value)
}

// median returns the median of the values, or 0 if there are none.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
