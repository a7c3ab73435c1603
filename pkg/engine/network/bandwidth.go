package network

import (
	"fmt"
	"math"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
)

// The annotations by which a pod limits its traffic, in bits per second.
// https://kubernetes.io/docs/concepts/extend-kubernetes/compute-storage-net/network-plugins/
const (
	ingressAnnotation = "kubernetes.io/ingress-bandwidth"
	egressAnnotation  = "kubernetes.io/egress-bandwidth"
)

// Bandwidth limits a pod's traffic, seen from the pod: ingress is what it
// receives. Rates are in bits per second, bursts in bits, 0 is no limit. The
// JSON form is that of CNI's capability bandwidth.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// burst is the largest that the bandwidth plugin takes. Pods cannot name one,
// and a small one would throttle them far below their rate.
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
