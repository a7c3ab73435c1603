package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-cri/berth/integration/testbed"
)

// node is the kubelet and its directories.
type node struct {
	kubelet *process
	config  map[string]any // of the kubelet
	root    string         // the kubelet's --root-dir, with volumes
	static  string         // manifests of static pods
}

// startNode starts the kubelet and waits until its node is ready.
func (c *Cluster) startNode(t testbed.T, options Options) {
	t.Helper()
	c.node = &node{root: filepath.Join(c.dir, "kubelet"), static: filepath.Join(c.dir, "static")}
	for _, dir := range []string{c.node.root, c.node.static} {
		testbed.Mustf(t, os.Mkdir(dir, 0o755), "make the kubelet's directories")
	}
	keepSysctls(t)
	keepDevicePlugins(t)
	t.Cleanup(func() { c.sweepNode(t) })
	makeCgroup(t, c.machine.Cgroup)
	c.node.config = c.kubeletConfig(t, options)
	c.node.kubelet = c.runOn(
		t, c.machine.Enter, testbed.Kubelet,
		"--config="+c.writeKubeletConfig(t),
		"--kubeconfig="+c.kubeconfig(t, "node.kubeconfig", c.nodeToken),
		"--root-dir="+c.node.root, "--cert-dir="+filepath.Join(c.dir, "kubelet-pki"),
		"--hostname-override="+NodeName, "--node-ip="+c.Address.String(), "--node-labels="+options.NodeLabels,
		"--v=2",
	)
	c.awaitNode(t)
}

func (c *Cluster) writeKubeletConfig(t testbed.T) string {
	t.Helper()
	config, err := json.Marshal(c.node.config)
	testbed.Mustf(t, err, "write the kubelet's configuration")
	return c.write(t, "kubelet.json", config)
}

// kubeletConfig differs from a kubelet's defaults where a test must not change its host, and where
// the host may lack something.
func (c *Cluster) kubeletConfig(t testbed.T, options Options) map[string]any {
	t.Helper()
	type object = map[string]any
	port, err := strconv.Atoi(freePort(t, c.Address))
	if err != nil {
		t.Fatalf("%v", err)
	}
	// Pods are not evicted, even if the host's disk is full.
	never := object{}
	for _, signal := range []string{
		"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree", "pid.available",
	} {
		never[signal] = "0%"
	}
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"containerRuntimeEndpoint": "unix://" + c.machine.Socket,
		"address":                  c.Address.String(), "port": port, "healthzPort": 0,
		"authentication": object{"anonymous": object{"enabled": true}, "webhook": object{"enabled": false}},
		"authorization":  object{"mode": "AlwaysAllow"},
		"clusterDNS":     []string{ClusterDNS}, "clusterDomain": "cluster.test",
		"featureGates":  options.FeatureGates,
		"staticPodPath": c.node.static, "podLogsDir": c.Logs, "volumePluginDir": filepath.Join(c.dir, "plugins"),
		"fileCheckFrequency": "1s", "nodeStatusUpdateFrequency": "2s", "volumeStatsAggPeriod": "2s",
		"cgroupDriver": "cgroupfs", "cgroupRoot": c.machine.Cgroup, "enforceNodeAllocatable": []string{}, "failCgroupV1": false,
		"failSwapOn": false, "makeIPTablesUtilChains": false, "oomScoreAdj": 0, "protectKernelDefaults": false,
		"evictionHard": never, "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
		"containerLogMaxSize": "300Ki", "containerLogMaxFiles": 10, "containerLogMonitorInterval": "3s",
		"allowedUnsafeSysctls": []string{"net.core.somaxconn"},
	}
	// If systemd creates the cgroups, the kubelet's defaults apply, and it gets the cgroup driver
	// from the CRI.
	if testbed.SystemdCgroups() {
		for _, key := range []string{"cgroupDriver", "cgroupRoot", "failCgroupV1"} {
			delete(config, key)
		}
	}
	maps.Copy(config, options.Kubelet)
	return config
}

// ClusterDNS is the name server of the pods. No server has this address.
const ClusterDNS = "10.0.0.10"

// awaitNode waits until the kubelet has reported that its node is ready.
func (c *Cluster) awaitNode(t testbed.T) {
	t.Helper()
	c.node.kubelet.await(t, startTimeout, func() error {
		node, err := c.Node(NodeName)
		if err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			if condition.Status == corev1.ConditionTrue {
				return nil
			}
			return fmt.Errorf("the node is not ready: %s", condition.Message)
		}
		return errors.New("the node has no condition Ready")
	})
}

// Node reads a node from the API server.
func (c *Cluster) Node(name string) (*corev1.Node, error) {
	node := new(corev1.Node)
	return node, c.get("/api/v1/nodes/"+name, node)
}

// KillKubelet kills the kubelet with SIGKILL, and nothing else.
func (c *Cluster) KillKubelet(t testbed.T) {
	t.Helper()
	testbed.Mustf(t, c.node.kubelet.end(syscall.SIGKILL), "kill the kubelet")
}

// StartKubelet starts the kubelet again and waits until it answers.
func (c *Cluster) StartKubelet(t testbed.T) {
	t.Helper()
	c.node.kubelet.start(t)
	c.node.kubelet.await(t, startTimeout, func() error {
		return c.get("/api/v1/nodes/"+NodeName+"/proxy/healthz", nil)
	})
}

// RestartKubelet stops the kubelet with SIGTERM, and starts it with the socket of a CRI daemon.
func (c *Cluster) RestartKubelet(t testbed.T, socket string) {
	t.Helper()
	testbed.Mustf(t, c.node.kubelet.end(syscall.SIGTERM), "end the kubelet")
	c.node.config["containerRuntimeEndpoint"] = "unix://" + socket
	c.writeKubeletConfig(t)
	c.StartKubelet(t)
}

// PowerCut simulates a power cut of the node, and starts the node again.
func (c *Cluster) PowerCut(t testbed.T) {
	t.Helper()
	c.KillKubelet(t)
	c.Berth.PowerCut(t)
	testbed.Mustf(t, unmountBelow(c.node.root), "cut the power")
	makeCgroup(t, c.Berth.Cgroup)
	c.Berth.Start(t)
	c.StartKubelet(t)
}
