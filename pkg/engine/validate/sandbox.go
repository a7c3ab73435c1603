package validate

import (
	"net/netip"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
)

// maxHostname is HOST_NAME_MAX of Linux.
const maxHostname = 64

func sandboxConfig(field string, c *runtimeapi.PodSandboxConfig) error {
	return first(
		sandboxMetadata(field+".metadata", c.GetMetadata()),
		hostname(field+".hostname", c.GetHostname()),
		absolute(field+".log_directory", c.GetLogDirectory(), optional),
		dns(field+".dns_config", c.GetDnsConfig()),
		each(field+".port_mappings", c.GetPortMappings(), portMapping),
		linuxSandbox(field+".linux", c.GetLinux()),
	)
}

// sandboxMetadata checks the fields that identify a sandbox, together with attempt.
func sandboxMetadata(field string, m *runtimeapi.PodSandboxMetadata) error {
	if m == nil {
		return invalid(field, "is missing; send the pod's name, namespace and uid")
	}
	return first(
		name(field+".name", m.GetName()),
		name(field+".namespace", m.GetNamespace()),
		name(field+".uid", m.GetUid()),
	)
}

func hostname(field, h string) error {
	return first(
		atMost(field, h, maxHostname),
		invalidIf(strings.ContainsAny(h, "/ "), field, "%s is not a host name; use letters, digits, '-' and '.'", quoted(h)),
		clean(field, h),
	)
}

// dns refuses line breaks and other characters that could forge a line in the pod's resolv.conf.
func dns(field string, d *runtimeapi.DNSConfig) error {
	return first(
		each(field+".servers", d.GetServers(), resolverWord),
		each(field+".searches", d.GetSearches(), resolverWord),
		each(field+".options", d.GetOptions(), resolverWord),
	)
}

func resolverWord(field, word string) error {
	return first(
		invalidIf(word == "" || strings.Contains(word, " "), field, "%s is not one word; give one entry per item", quoted(word)),
		clean(field, word),
	)
}

func portMapping(field string, p *runtimeapi.PortMapping) error {
	return first(
		known(field+".protocol", p.GetProtocol(), runtimeapi.Protocol_name),
		port(field+".container_port", p.GetContainerPort()),
		port(field+".host_port", p.GetHostPort()),
		// A host port of zero means no mapping, and the kubelet sends many of those.
		invalidIf(p.GetHostPort() != 0 && p.GetContainerPort() == 0, field+".container_port",
			"is 0 although host_port is %d; name the port in the pod", p.GetHostPort()),
		hostIP(field+".host_ip", p.GetHostIp()),
	)
}

func port(field string, p int32) error {
	return invalidIf(p < 0 || p > 65535, field, "%d is not a port; use 0 to 65535", p)
}

func hostIP(field, ip string) error {
	_, err := netip.ParseAddr(ip)
	return invalidIf(ip != "" && err != nil, field, "%s is not an IP address; give one of this node, or nothing for all", quoted(ip))
}

func linuxSandbox(field string, l *runtimeapi.LinuxPodSandboxConfig) error {
	options := l.GetSecurityContext().GetNamespaceOptions()
	return first(
		cgroupParent(field+".cgroup_parent", l.GetCgroupParent()),
		sandboxSecurity(field+".security_context", l.GetSecurityContext()),
		sysctls(field+".sysctls", l.GetSysctls(), options),
	)
}

// cgroupParent checks a path in the style of cgroupfs, or the bare name of a systemd slice. The
// cgroup package checks whether it fits the driver.
func cgroupParent(field, p string) error {
	return first(
		invalidIf(strings.Contains("/"+p+"/", "/../"), field,
			"%s contains \"..\"; give the path from the root of the cgroup hierarchy", quoted(p)),
		clean(field, p),
		fits(field, p),
	)
}

// sysctls refuses sysctls that would change the node instead of the pod.
func sysctls(field string, values map[string]string, o *runtimeapi.NamespaceOption) error {
	own := func(ns sysctl.Namespace) bool {
		shared := o.GetNetwork() // the UTS namespace is shared with the network
		if ns == sysctl.IPC {
			shared = o.GetIpc()
		}
		return shared != runtimeapi.NamespaceMode_NODE
	}
	return eachValue(field, values, func(field, key, value string) error {
		err := first(
			invalidIf(strings.Contains(key, " ") || len(key) > maxName, field, "is not the name of a sysctl; write it as net.ipv4.ip_forward"),
			clean(field, key),
			withoutNUL(field, value),
		)
		if err != nil {
			return err
		}
		why := sysctl.Refusal(key, own)
		return invalidIf(why != "", field, "%s", why)
	})
}
