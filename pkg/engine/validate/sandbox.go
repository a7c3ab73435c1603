package validate

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
)

// maxHostname is HOST_NAME_MAX of Linux.
const maxHostname = 64

func sandboxConfig(field string, c *runtimeapi.PodSandboxConfig) error {
	return first(
		func() error { return sandboxMetadata(field+".metadata", c.GetMetadata()) },
		func() error { return hostname(field+".hostname", c.GetHostname()) },
		func() error { return absolute(field+".log_directory", c.GetLogDirectory(), optional) },
		func() error { return dns(field+".dns_config", c.GetDnsConfig()) },
		func() error { return each(field+".port_mappings", c.GetPortMappings(), portMapping) },
		func() error { return linuxSandbox(field+".linux", c.GetLinux()) },
	)
}

// sandboxMetadata checks the four facts that together name a sandbox.
func sandboxMetadata(field string, m *runtimeapi.PodSandboxMetadata) error {
	if m == nil {
		return invalid(field, "is missing; send the pod's name, namespace and uid")
	}
	return first(
		func() error { return name(field+".name", m.GetName()) },
		func() error { return name(field+".namespace", m.GetNamespace()) },
		func() error { return name(field+".uid", m.GetUid()) },
	)
}

func hostname(field, h string) error {
	if len(h) > maxHostname {
		return invalid(field, "%s has %d bytes; use at most %d", quoted(h), len(h), maxHostname)
	}
	if strings.ContainsAny(h, "/ ") {
		return invalid(field, "%s is not a host name; use letters, digits, '-' and '.'", quoted(h))
	}
	return clean(field, h)
}

// dns keeps line breaks, and whatever else could forge a line, out of the
// pod's resolv.conf.
func dns(field string, d *runtimeapi.DNSConfig) error {
	return first(
		func() error { return each(field+".servers", d.GetServers(), resolverWord) },
		func() error { return each(field+".searches", d.GetSearches(), resolverWord) },
		func() error { return each(field+".options", d.GetOptions(), resolverWord) },
	)
}

func resolverWord(field, word string) error {
	if word == "" || strings.Contains(word, " ") {
		return invalid(field, "%s is not one word; give one entry per item", quoted(word))
	}
	return clean(field, word)
}

func portMapping(field string, p *runtimeapi.PortMapping) error {
	return first(
		func() error { return known(field+".protocol", p.GetProtocol(), runtimeapi.Protocol_name) },
		func() error { return port(field+".container_port", p.GetContainerPort()) },
		func() error { return port(field+".host_port", p.GetHostPort()) },
		func() error { return mappedPort(field, p) },
		func() error { return hostIP(field+".host_ip", p.GetHostIp()) },
	)
}

func port(field string, p int32) error {
	if p < 0 || p > 65535 {
		return invalid(field, "%d is not a port; use 0 to 65535", p)
	}
	return nil
}

// mappedPort checks that a mapping leads somewhere. A host port of zero is no
// mapping at all, and the kubelet sends many of those.
func mappedPort(field string, p *runtimeapi.PortMapping) error {
	if p.GetHostPort() != 0 && p.GetContainerPort() == 0 {
		return invalid(field+".container_port", "is 0 although host_port is %d; name the port in the pod", p.GetHostPort())
	}
	return nil
}

func hostIP(field, ip string) error {
	if ip == "" {
		return nil
	}
	if _, err := netip.ParseAddr(ip); err != nil {
		return invalid(field, "%s is not an IP address; give one of this node, or nothing for all", quoted(ip))
	}
	return nil
}

func linuxSandbox(field string, l *runtimeapi.LinuxPodSandboxConfig) error {
	options := l.GetSecurityContext().GetNamespaceOptions()
	return first(
		func() error { return cgroupParent(field+".cgroup_parent", l.GetCgroupParent()) },
		func() error { return sandboxSecurity(field+".security_context", l.GetSecurityContext()) },
		func() error { return sysctls(field+".sysctls", l.GetSysctls(), options) },
	)
}

// cgroupParent checks a path in the style of cgroupfs, or the bare name of a
// systemd slice. Whether it fits the driver is known to the cgroup package.
func cgroupParent(field, p string) error {
	if hasParent(p) {
		return invalid(field, "%s contains \"..\"; give the path from the root of the cgroup hierarchy", quoted(p))
	}
	if err := clean(field, p); err != nil {
		return err
	}
	return fits(field, p)
}

// sysctls rejects what would change the node instead of the pod.
func sysctls(field string, values map[string]string, o *runtimeapi.NamespaceOption) error {
	own := func(ns sysctl.Namespace) bool {
		shared := o.GetNetwork() // and the UTS namespace with it
		if ns == sysctl.IPC {
			shared = o.GetIpc()
		}
		return shared != runtimeapi.NamespaceMode_NODE
	}
	// Sorted, so that equal requests get equal errors.
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at := field + "[" + quoted(key) + "]"
		if err := sysctlText(at, key, values[key]); err != nil {
			return err
		}
		if why := sysctl.Refusal(key, own); why != "" {
			return invalid(at, "%s", why)
		}
	}
	return nil
}

func sysctlText(field, key, value string) error {
	if strings.Contains(key, " ") || len(key) > maxName {
		return invalid(field, "is not the name of a sysctl; write it as net.ipv4.ip_forward")
	}
	if err := clean(field, key); err != nil {
		return err
	}
	return withoutNUL(field, value)
}
