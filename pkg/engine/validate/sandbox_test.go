package validate

import (
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

func TestSandboxRefuses(t *testing.T) {
	type config = runtimeapi.PodSandboxConfig
	tests := map[string]struct {
		field  string
		change func(*config)
	}{
		"no metadata":                     {"config.metadata", func(c *config) { c.Metadata = nil }},
		"no name":                         {"config.metadata.name", func(c *config) { c.Metadata.Name = "" }},
		"long name":                       {"config.metadata.name", func(c *config) { c.Metadata.Name = strings.Repeat("a", 254) }},
		"very long name":                  {"config.metadata.name", func(c *config) { c.Metadata.Name = long }},
		"no namespace":                    {"config.metadata.namespace", func(c *config) { c.Metadata.Namespace = "" }},
		"long namespace":                  {"config.metadata.namespace", func(c *config) { c.Metadata.Namespace = long }},
		"namespace is a path":             {"config.metadata.namespace", func(c *config) { c.Metadata.Namespace = "../x" }},
		"no uid":                          {"config.metadata.uid", func(c *config) { c.Metadata.Uid = "" }},
		"long uid":                        {"config.metadata.uid", func(c *config) { c.Metadata.Uid = long }},
		"uid with line break":             {"config.metadata.uid", func(c *config) { c.Metadata.Uid = "a\nb" }},
		"long hostname":                   {"config.hostname", func(c *config) { c.Hostname = strings.Repeat("a", 65) }},
		"hostname with space":             {"config.hostname", func(c *config) { c.Hostname = "a b" }},
		"relative logs":                   {"config.log_directory", func(c *config) { c.LogDirectory = "logs" }},
		"log directory too long":          {"config.log_directory", func(c *config) { c.LogDirectory = "/" + long }},
		"logs with NUL":                   {"config.log_directory", func(c *config) { c.LogDirectory = "/a\x00" }},
		"forged resolv.conf":              {"config.dns_config.servers[1]", func(c *config) { c.DnsConfig.Servers = []string{"1.1.1.1", "1\nsearch evil"} }},
		"empty search":                    {"config.dns_config.searches[0]", func(c *config) { c.DnsConfig.Searches = []string{""} }},
		"two options in one":              {"config.dns_config.options[0]", func(c *config) { c.DnsConfig.Options = []string{"ndots:5 edns0"} }},
		"unknown protocol":                {"config.port_mappings[0].protocol", func(c *config) { c.PortMappings[0].Protocol = 99 }},
		"port too high":                   {"config.port_mappings[0].container_port", func(c *config) { c.PortMappings[0].ContainerPort = 65536 }},
		"negative host port":              {"config.port_mappings[1].host_port", func(c *config) { c.PortMappings[1].HostPort = -1 }},
		"host port to nowhere":            {"config.port_mappings[1].container_port", func(c *config) { c.PortMappings[1].ContainerPort = 0 }},
		"host ip is a name":               {"config.port_mappings[1].host_ip", func(c *config) { c.PortMappings[1].HostIp = "localhost" }},
		"cgroup outside of the hierarchy": {"config.linux.cgroup_parent", func(c *config) { c.Linux.CgroupParent = "/a/../../b" }},
		"cgroup with NUL":                 {"config.linux.cgroup_parent", func(c *config) { c.Linux.CgroupParent = "/a\x00" }},
		"sysctl with a path to a parent":  {`config.linux.sysctls["net/../kernel/x"]`, func(c *config) { c.Linux.Sysctls = map[string]string{"net/../kernel/x": "1"} }},
		"sysctl without a name":           {`config.linux.sysctls[""]`, func(c *config) { c.Linux.Sysctls = map[string]string{"": "1"} }},
		"sysctl with NUL":                 {`config.linux.sysctls["net.a"]`, func(c *config) { c.Linux.Sysctls = map[string]string{"net.a": "\x00"} }},
		"sysctl of the node's network": {`config.linux.sysctls["net.ipv4.ip_forward"]`, func(c *config) {
			c.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1"}
			c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
		}},
		"sysctl of the node's IPC": {`config.linux.sysctls["kernel/sem"]`, func(c *config) {
			c.Linux.Sysctls = map[string]string{"kernel/sem": "1"}
			c.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_NODE
		}},
		"sysctl of the whole node": {`config.linux.sysctls["vm.swappiness"]`, func(c *config) { c.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} }},
		"hostname by sysctl":       {`config.linux.sysctls["kernel.hostname"]`, func(c *config) { c.Linux.Sysctls = map[string]string{"kernel.hostname": "x"} }},
		"unknown network mode": {"config.linux.security_context.namespace_options.network", func(c *config) {
			c.Linux.SecurityContext.NamespaceOptions.Network = 9
		}},
		"network of a container": {"config.linux.security_context.namespace_options.network", func(c *config) {
			c.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_CONTAINER
		}},
		"ipc of a target": {"config.linux.security_context.namespace_options.ipc", func(c *config) {
			c.Linux.SecurityContext.NamespaceOptions.Ipc = runtimeapi.NamespaceMode_TARGET
		}},
		"unknown ipc mode": {"config.linux.security_context.namespace_options.ipc", func(c *config) {
			c.Linux.SecurityContext.NamespaceOptions.Ipc = 99
		}},
		"unknown pid mode": {"config.linux.security_context.namespace_options.pid", func(c *config) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = 17
		}},
		"negative user": {"config.linux.security_context.run_as_user", func(c *config) { c.Linux.SecurityContext.RunAsUser.Value = -1 }},
		"user above the maximum": {"config.linux.security_context.run_as_user", func(c *config) {
			c.Linux.SecurityContext.RunAsUser.Value = 1 << 31
		}},
		"group without user": {"config.linux.security_context.run_as_group", func(c *config) { c.Linux.SecurityContext.RunAsUser = nil }},
		"negative supplemental group": {"config.linux.security_context.supplemental_groups[0]", func(c *config) {
			c.Linux.SecurityContext.SupplementalGroups = []int64{-5}
		}},
		"unknown policy": {"config.linux.security_context.supplemental_groups_policy", func(c *config) {
			c.Linux.SecurityContext.SupplementalGroupsPolicy = 7
		}},
		"relative seccomp profile": {"config.linux.security_context.seccomp.localhost_ref", func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "a.json"}
		}},
		"seccomp profile of the default": {"config.linux.security_context.seccomp.localhost_ref", func(c *config) {
			c.Linux.SecurityContext.Seccomp.LocalhostRef = "/a.json"
		}},
		"unknown profile type": {"config.linux.security_context.apparmor.profile_type", func(c *config) {
			c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: 5}
		}},
		"no apparmor profile": {"config.linux.security_context.apparmor.localhost_ref", func(c *config) {
			c.Linux.SecurityContext.Apparmor = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			req := sandboxRequest()
			tc.change(req.Config)
			checkRefused(t, RunPodSandbox(req), tc.field)
		})
	}
}

// Sysctls are accepted or refused here, before the pod has a record. There used to be three
// different lists of IPC sysctls, and a pod was rolled back if only a later list refused its
// sysctl.
func TestSysctlsOfANamespaceOfThePod(t *testing.T) {
	for _, name := range []string{"kernel.sem_next_id", "kernel.auto_msgmni", "kernel/shm_rmid_forced", "fs.mqueue.msg_max", "kernel.domainname"} {
		req := sandboxRequest()
		req.Config.Linux.Sysctls = map[string]string{name: "1"}
		test.Checkf(t, RunPodSandbox(req), "%s", name)
	}
}

// A pod in the node's network has the node's hostname. A request with another hostname is
// accepted, as by containerd and CRI-O.
func TestHostnameInTheNodesNetwork(t *testing.T) {
	req := sandboxRequest()
	req.Config.Linux.Sysctls = nil
	req.Config.Hostname = "web-0"
	req.Config.Linux.SecurityContext.NamespaceOptions = &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE}
	test.Check(t, RunPodSandbox(req))
}

func TestUserNamespaces(t *testing.T) {
	const field = "config.linux.security_context.namespace_options.userns_options"
	mapped := func(m ...*runtimeapi.IDMapping) *runtimeapi.UserNamespace {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: m, Gids: m}
	}
	usual := &runtimeapi.IDMapping{HostId: 1 << 16, Length: 1 << 16}
	for name, tc := range map[string]struct {
		userns *runtimeapi.UserNamespace
		field  string // of the mistake; empty if there is none
	}{
		"usual":                   {mapped(usual), ""},
		"the node's":              {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, ""},
		"the node's, mapped":      {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE, Uids: []*runtimeapi.IDMapping{usual}}, field},
		"a container's":           {&runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_CONTAINER}, field + ".mode"},
		"no mapping":              {mapped(), field + ".uids"},
		"two mappings":            {mapped(usual, usual), field + ".uids"},
		"only users":              {&runtimeapi.UserNamespace{Uids: []*runtimeapi.IDMapping{usual}}, field + ".gids"},
		"without root":            {mapped(&runtimeapi.IDMapping{ContainerId: 1, HostId: 5, Length: 9}), field + ".uids[0].container_id"},
		"no IDs":                  {mapped(&runtimeapi.IDMapping{HostId: 5}), field + ".uids[0].length"},
		"to the last id":          {mapped(&runtimeapi.IDMapping{HostId: 1<<32 - 2, Length: 1}), ""},
		"beyond the last id":      {mapped(&runtimeapi.IDMapping{HostId: 1<<32 - 1, Length: 1}), field + ".uids[0]"},
		"overflowing the last id": {mapped(&runtimeapi.IDMapping{HostId: 1 << 31, Length: 1<<32 - 1}), field + ".uids[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			req := sandboxRequest()
			req.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = tc.userns
			err := RunPodSandbox(req)
			if tc.field != "" {
				checkRefused(t, err, tc.field)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	for name, change := range map[string]func(*runtimeapi.NamespaceOption){
		"pid": func(o *runtimeapi.NamespaceOption) { o.Pid = runtimeapi.NamespaceMode_NODE },
		"ipc": func(o *runtimeapi.NamespaceOption) { o.Ipc = runtimeapi.NamespaceMode_NODE },
	} {
		req := sandboxRequest()
		o := req.Config.Linux.SecurityContext.NamespaceOptions
		o.UsernsOptions = mapped(usual)
		change(o)
		checkRefused(t, RunPodSandbox(req), "config.linux.security_context.namespace_options."+name)
	}
}
