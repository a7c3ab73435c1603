package network

import (
	"fmt"
	"math"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a pod sandbox, as the input of plugins.
type Pod struct {
	// ID is the sandbox id, CNI's container id.
	ID string
	// Name, Namespace and UID are the pod's.
	Name, Namespace, UID string
	// NetNS is the path of the network namespace. On Teardown it may be empty or not exist.
	NetNS string
	// Annotations go to plugins with the capability io.kubernetes.cri.pod-annotations.
	Annotations map[string]string
	// PortMappings go to plugins with the capability portMappings.
	PortMappings []PortMapping
	// Bandwidth goes to plugins with the capability bandwidth; nil means unlimited.
	Bandwidth *Bandwidth
	// DNS goes to plugins with the capability dns; nil means the node's.
	DNS *DNS
	// CgroupPath goes to plugins with the capability cgroupPath.
	CgroupPath string
	// CNIConfDir is the handler's own configuration directory; if empty, the node's.
	CNIConfDir string
}

// PortMapping publishes a port of the pod on the node, as the JSON of CNI's capability
// portMappings.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp or sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// DNS is the resolver configuration, as the JSON of CNI's capability dns.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// PodFrom converts a sandbox's configuration. It omits port mappings without a host port, as the
// CRI demands. Values that plugins could misread are errdefs.ErrInvalidArgument. The caller sets
// NetNS once the namespace exists.
func PodFrom(id string, config *runtimeapi.PodSandboxConfig, cniConfDir string) (*Pod, error) {
	meta := config.GetMetadata()
	pod := &Pod{
		ID:           id,
		Name:         meta.GetName(),
		Namespace:    meta.GetNamespace(),
		UID:          meta.GetUid(),
		Annotations:  config.GetAnnotations(),
		DNS:          dnsFrom(config.GetDnsConfig()),
		CgroupPath:   config.GetLinux().GetCgroupParent(),
		CNIConfDir:   cniConfDir,
		PortMappings: portMappings(config.GetPortMappings()),
	}
	if err := pod.check(); err != nil {
		return nil, err
	}
	var err error
	pod.Bandwidth, err = bandwidthFrom(config.GetAnnotations())
	return pod, err
}

// check refuses metadata that would add other CNI arguments.
func (p *Pod) check() error {
	for _, field := range []struct{ key, value string }{
		{"name", p.Name}, {"namespace", p.Namespace}, {"uid", p.UID},
	} {
		if strings.ContainsAny(field.value, ";=\x00") {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
				"pod metadata: %s %.100q contains ';' or '=', which separate the arguments of CNI plugins", field.key, field.value))
		}
	}
	return nil
}

func dnsFrom(c *runtimeapi.DNSConfig) *DNS {
	if c == nil {
		return nil
	}
	return &DNS{Servers: c.GetServers(), Searches: c.GetSearches(), Options: c.GetOptions()}
}

func portMappings(mappings []*runtimeapi.PortMapping) []PortMapping {
	var out []PortMapping
	for _, m := range mappings {
		if m.GetHostPort() == 0 {
			continue
		}
		out = append(out, PortMapping{
			HostPort:      m.GetHostPort(),
			ContainerPort: m.GetContainerPort(),
			Protocol:      strings.ToLower(m.GetProtocol().String()),
			HostIP:        m.GetHostIp(),
		})
	}
	return out
}

// Annotations by which a pod limits its traffic, in bits per second.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Bandwidth limits a pod's traffic, as seen from the pod: ingress is what it receives. Rates are in
// bits per second, bursts in bits; 0 means unlimited. It is the JSON of CNI's capability bandwidth.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// burst is the largest value that the bandwidth plugin accepts. Pods cannot set a burst, and a
// small one would throttle them far below their rate.
const burst = math.MaxUint32

// The range of rates that Kubernetes accepts.
var (
	minRate = resource.MustParse("1k")
	maxRate = resource.MustParse("1P")
)

func bandwidthFrom(annotations map[string]string) (*Bandwidth, error) {
	ingress, err := rate(annotations, ingressAnnotation)
	if err != nil {
		return nil, err
	}
	egress, err := rate(annotations, egressAnnotation)
	if err != nil {
		return nil, err
	}
	if ingress == 0 && egress == 0 {
		return nil, nil
	}
	b := &Bandwidth{IngressRate: ingress, EgressRate: egress}
	if ingress > 0 {
		b.IngressBurst = burst
	}
	if egress > 0 {
		b.EgressBurst = burst
	}
	return b, nil
}

func rate(annotations map[string]string, key string) (uint64, error) {
	text, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"annotation %s: %.60q is not a quantity: write bits per second, such as 10M", key, text))
	}
	if q.Cmp(minRate) < 0 || q.Cmp(maxRate) > 0 {
		return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"annotation %s: %.60q is not between 1k and 1P bits per second", key, text))
	}
	return uint64(q.Value()), nil
}
