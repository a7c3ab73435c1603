// Package status serves the CRI's calls about the node: its version, its conditions, and the
// features of its handlers.
package status

import (
	"context"
	"encoding/json"
	"runtime"
	"sync"

	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/settings"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/preflight"
	"github.com/berth-cri/berth/pkg/printable"
)

// Node serves the calls of the CRI about the node.
type Node struct {
	pods         *pod.Registry
	binaries     *binaries.Binaries
	settings     *settings.Settings
	capabilities *capabilities.Checker
	cni          interface{ Status() error }
	config       Config
	features     featureMemory
}

// Config describes the node.
type Config struct {
	RuntimeName, Version, Snapshotter string
	// Definitions returns the handlers that Status reports.
	Definitions func() []*handler.Definition
}

// New returns the Node.
func New(pods *pod.Registry, s *settings.Settings, b *binaries.Binaries, c *capabilities.Checker, cni interface{ Status() error }, config Config) *Node {
	return &Node{pods: pods, settings: s, binaries: b, capabilities: c, cni: cni, config: config}
}

// Constants of Version's response. The CRI fixes kubeletAPIVersion.
const (
	kubeletAPIVersion = "0.1.0"
	runtimeAPIVersion = "v1"
)

// Version returns the runtime's name and version.
func (b *Node) Version(context.Context, *runtimeapi.VersionRequest) (*runtimeapi.VersionResponse, error) {
	return &runtimeapi.VersionResponse{
		Version: kubeletAPIVersion, RuntimeName: b.config.RuntimeName, RuntimeVersion: b.config.Version, RuntimeApiVersion: runtimeAPIVersion,
	}, nil
}

// Status returns the node's conditions and the features of all its handlers. It never waits for a
// network plugin, and at most capabilities.ProbeWait for the probes of all runtimes.
func (b *Node) Status(ctx context.Context, r *runtimeapi.StatusRequest) (*runtimeapi.StatusResponse, error) {
	network := &runtimeapi.RuntimeCondition{Type: runtimeapi.NetworkReady, Status: true}
	if err := b.cni.Status(); err != nil {
		network.Status, network.Reason, network.Message = false, "NetworkPluginNotReady", printable.Line(printable.Error(err))
	}
	resp := &runtimeapi.StatusResponse{
		RuntimeHandlers: b.handlers(ctx),
		Status: &runtimeapi.RuntimeStatus{Conditions: []*runtimeapi.RuntimeCondition{
			{Type: runtimeapi.RuntimeReady, Status: true}, network,
		}},
		Features: &runtimeapi.RuntimeFeatures{SupplementalGroupsPolicy: true, UserNamespacesHostNetwork: true, MountOptions: true},
	}
	if r.GetVerbose() {
		resp.Info = b.info(network)
	}
	return resp, nil
}

// handlers probes all handlers concurrently: a handler with an unreadable binary, as on a dead
// network mount, loses only its own features. A feature that is not probed in time keeps its last
// known value: a busy node must not seem to lose features.
func (b *Node) handlers(ctx context.Context) []*runtimeapi.RuntimeHandler {
	ctx, cancel := context.WithTimeout(ctx, capabilities.ProbeWait)
	defer cancel()
	definitions := b.config.Definitions()
	all := make([]*runtimeapi.RuntimeHandler, len(definitions))
	var asking sync.WaitGroup
	for i, d := range definitions {
		asking.Go(func() {
			found, known := b.ask(ctx, d)
			all[i] = &runtimeapi.RuntimeHandler{Name: d.Name, Features: b.features.after(d.Digest(), found, known)}
		})
	}
	asking.Wait()
	return all
}

// featureMemory has the last known features by a Definition's digest.
type featureMemory struct{ last sync.Map }

type knownFeatures struct{ recursiveReadOnly, userNamespaces bool }

// after returns found, with the last known values of features that k does not mark as known.
func (m *featureMemory) after(digest string, found *runtimeapi.RuntimeHandlerFeatures, k knownFeatures) *runtimeapi.RuntimeHandlerFeatures {
	now := &runtimeapi.RuntimeHandlerFeatures{
		RecursiveReadOnlyMounts: found.GetRecursiveReadOnlyMounts(), UserNamespaces: found.GetUserNamespaces(),
	}
	if last, ok := m.last.Load(digest); ok {
		last := last.(*runtimeapi.RuntimeHandlerFeatures)
		if !k.recursiveReadOnly {
			now.RecursiveReadOnlyMounts = last.GetRecursiveReadOnlyMounts()
		}
		if !k.userNamespaces {
			now.UserNamespaces = last.GetUserNamespaces()
		}
	}
	m.last.Store(digest, now)
	return now
}

// ask returns the features that both the runtime and the node support, and which are known.
func (b *Node) ask(ctx context.Context, d *handler.Definition) (*runtimeapi.RuntimeHandlerFeatures, knownFeatures) {
	found := &runtimeapi.RuntimeHandlerFeatures{}
	rt, err := b.binaries.Prober.Probe(ctx, d)
	if err != nil {
		log.G(ctx).WithError(err).WithField("handler", d.Name).Debug("Failed to probe runtime")
		inTime := ctx.Err() == nil
		return found, knownFeatures{inTime, inTime}
	}
	b.binaries.Copies.Prepare(d, rt)
	can := b.capabilities.Of(ctx, d, rt)
	found.RecursiveReadOnlyMounts = preflight.RecursiveReadOnly(can) == nil
	lack := preflight.UserNamespaces(can)
	found.UserNamespaces = lack == nil
	if lack != nil {
		log.G(ctx).WithFields(log.Fields{"handler": d.Name, "reason": lack.Why}).Debug("Handler does not support user namespaces")
	}
	// The node's support of id mapping may not be known in time.
	return found, knownFeatures{recursiveReadOnly: true, userNamespaces: lack == nil || ctx.Err() == nil}
}

type nodeInfo struct {
	StateDir     string                `json:"stateDir"`
	RootDir      string                `json:"rootDir"`
	CgroupDriver string                `json:"cgroupDriver"`
	Snapshotter  string                `json:"snapshotter"`
	Handlers     []*handler.Definition `json:"handlers"`
}

func (b *Node) info(network *runtimeapi.RuntimeCondition) map[string]string {
	config, _ := json.Marshal(nodeInfo{
		StateDir: b.pods.State, RootDir: b.pods.Root, CgroupDriver: string(b.settings.Driver),
		Snapshotter: b.config.Snapshotter, Handlers: b.config.Definitions(),
	})
	version, _ := json.Marshal(runtime.Version())
	cni, _ := json.Marshal(network.GetMessage())
	return map[string]string{"config": string(config), "golang": string(version), "lastCNILoadStatus": string(cni)}
}

// RuntimeConfig returns the cgroup driver that the kubelet must use.
func (b *Node) RuntimeConfig(context.Context, *runtimeapi.RuntimeConfigRequest) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	if b.settings.Driver == cgroup.Systemd {
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

// UpdateRuntimeConfig ignores the pod CIDR, which is in the CNI configuration.
func (b *Node) UpdateRuntimeConfig(context.Context, *runtimeapi.UpdateRuntimeConfigRequest) (*runtimeapi.UpdateRuntimeConfigResponse, error) {
	return &runtimeapi.UpdateRuntimeConfigResponse{}, nil
}
