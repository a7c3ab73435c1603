package network

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestPodFrom(t *testing.T) {
	pod := test.Value(PodFrom("id1", &runtimeapi.PodSandboxConfig{
		Metadata:    &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u-1", Attempt: 3},
		Labels:      map[string]string{"l": "1"},
		Annotations: map[string]string{ingressAnnotation: "10M", egressAnnotation: "1.5G"},
		Linux:       &runtimeapi.LinuxPodSandboxConfig{CgroupParent: "/kubepods/pod1"},
		DnsConfig:   &runtimeapi.DNSConfig{Servers: []string{"1.1.1.1"}},
		PortMappings: []*runtimeapi.PortMapping{
			{ContainerPort: 80},
			{ContainerPort: 53, HostPort: 5353, Protocol: runtimeapi.Protocol_UDP, HostIp: "::1"},
			nil,
			{ContainerPort: 80, HostPort: 8080},
		},
	}, "/etc/cni/other"))(t)
	want := &Pod{
		ID: "id1", Name: "web", Namespace: "shop", UID: "u-1",
		Annotations: map[string]string{ingressAnnotation: "10M", egressAnnotation: "1.5G"},
		DNS:         &DNS{Servers: []string{"1.1.1.1"}},
		PortMappings: []PortMapping{
			{HostPort: 5353, ContainerPort: 53, Protocol: "udp", HostIP: "::1"},
			{HostPort: 8080, ContainerPort: 80, Protocol: "tcp"},
		},
		Bandwidth:  &Bandwidth{IngressRate: 10_000_000, IngressBurst: burst, EgressRate: 1_500_000_000, EgressBurst: burst},
		CgroupPath: "/kubepods/pod1", CNIConfDir: "/etc/cni/other",
	}
	if !reflect.DeepEqual(pod, want) {
		t.Errorf("got  %+v\nwant %+v", pod, want)
	}
}

func TestPodFromLittle(t *testing.T) {
	pod, err := PodFrom("id1", &runtimeapi.PodSandboxConfig{}, "")
	if err != nil || pod.Bandwidth != nil || pod.DNS != nil || pod.PortMappings != nil {
		t.Errorf("PodFrom returned %+v, %v", pod, err)
	}
}

func TestPodFromRefuses(t *testing.T) {
	annotation := func(value string) *runtimeapi.PodSandboxConfig {
		return &runtimeapi.PodSandboxConfig{Annotations: map[string]string{egressAnnotation: value}}
	}
	tests := map[string]struct {
		config *runtimeapi.PodSandboxConfig
		says   string
	}{
		"not a quantity": {annotation("fast"), "fast"},
		"empty":          {annotation(""), egressAnnotation},
		"too little":     {annotation("999"), "between 1k and 1P"},
		"too much":       {annotation("2P"), "between 1k and 1P"},
		"negative":       {annotation("-1M"), "between 1k and 1P"},
		"long":           {annotation(strings.Repeat("9", 5000)), egressAnnotation},
		"separator": {&runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "a;IP=1.2.3.4"}},
			"name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			checkError(t, test.Err(PodFrom("id1", tc.config, "")), errdefs.IsInvalidArgument, tc.says)
		})
	}
}

func TestCut(t *testing.T) {
	for text, want := range map[string]string{
		"short":       "short",
		"1234567890":  "1234567890",
		"12345678901": "1234567…",
		"123456ää99":  "123456…",
	} {
		test.Equal(t, fmt.Sprintf("cut(%q)", text), cut(text, 10), want)
	}
}
