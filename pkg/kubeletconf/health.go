package kubeletconf

import (
	"net"
	"strconv"

	"sigs.k8s.io/yaml"
)

// HealthAddress is where the kubelet serves its health on the node; empty if nowhere.
func (k Kubelet) HealthAddress() string {
	address, port := "127.0.0.1", 10248
	for _, f := range k.configs {
		var c struct {
			Address *string `json:"healthzBindAddress"`
			Port    *int    `json:"healthzPort"`
		}
		if yaml.Unmarshal([]byte(f.text), &c) != nil {
			continue // the kubelet does not start with it either
		}
		if c.Address != nil && *c.Address != "" {
			address = *c.Address
		}
		if c.Port != nil {
			port = *c.Port
		}
	}
	for _, v := range flagsOf(k.arguments, "healthz-bind-address") {
		address = v
	}
	for _, v := range flagsOf(k.arguments, "healthz-port") {
		if n, err := strconv.Atoi(v); err == nil {
			port = n
		}
	}
	if port == 0 {
		return ""
	}
	switch address {
	case "0.0.0.0":
		address = "127.0.0.1"
	case "::":
		address = "::1"
	}
	return net.JoinHostPort(address, strconv.Itoa(port))
}
