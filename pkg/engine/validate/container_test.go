package validate

import (
	"errors"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"

	"github.com/berth-cri/berth/internal/test"
)

func TestContainerRefuses(t *testing.T) {
	type config = runtimeapi.ContainerConfig
	const security = "config.linux.security_context."
	tests := map[string]struct {
		field  string
		change func(*config)
	}{
		"no metadata":                   {"config.metadata", func(c *config) { c.Metadata = nil }},
		"no name":                       {"config.metadata.name", func(c *config) { c.Metadata.Name = "" }},
		"long name":                     {"config.metadata.name", func(c *config) { c.Metadata.Name = long }},
		"no image":                      {"config.image", func(c *config) { c.Image = nil }},
		"empty image":                   {"config.image", func(c *config) { c.Image = &runtimeapi.ImageSpec{} }},
		"bad image":                     {"image", func(c *config) { c.Image.Image = "A B" }},
		"command with NUL":              {"config.command[1]", func(c *config) { c.Command = []string{"a", "b\x00"} }},
		"argument with NUL":             {"config.args[0]", func(c *config) { c.Args = []string{long + "\x00"} }},
		"relative directory":            {"config.working_dir", func(c *config) { c.WorkingDir = "srv" }},
		"variable, no name":             {"config.envs[0].key", func(c *config) { c.Envs[0].Key = "" }},
		"variable with =":               {"config.envs[0].key", func(c *config) { c.Envs[0].Key = "A=B" }},
		"name with NUL":                 {"config.envs[0].key", func(c *config) { c.Envs[0].Key = "A\x00" }},
		"value with NUL":                {"config.envs[1].value", func(c *config) { c.Envs[1].Value = []byte{0} }},
		"log path leaves its directory": {"config.log_path", func(c *config) { c.LogPath = "a/../../b" }},
		"log is absolute":               {"config.log_path", func(c *config) { c.LogPath = "/var/log/x" }},
		"log path too long":             {"config.log_path", func(c *config) { c.LogPath = long }},
		"unknown signal":                {"config.stop_signal", func(c *config) { c.StopSignal = 9999 }},
		"mount to nowhere":              {"config.mounts[0].container_path", func(c *config) { c.Mounts[0].ContainerPath = "" }},
		"mount over the root":           {"config.mounts[0].container_path", func(c *config) { c.Mounts[0].ContainerPath = "//." }},
		"mount of nothing":              {"config.mounts[0].host_path", func(c *config) { c.Mounts[0].HostPath = "" }},
		"relative mount":                {"config.mounts[1].host_path", func(c *config) { c.Mounts[1].HostPath = "data" }},
		"unknown propagation":           {"config.mounts[1].propagation", func(c *config) { c.Mounts[1].Propagation = 3 }},
		"recursive, writable":           {"config.mounts[1].recursive_read_only", func(c *config) { c.Mounts[1].Readonly = false }},
		"recursive, shared": {"config.mounts[1].recursive_read_only", func(c *config) {
			c.Mounts[1].Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}},
		"unknown mount option": {"config.mounts[1].mount_options[0]", func(c *config) { c.Mounts[1].MountOptions = []string{"suid"} }},
		"half a mapping": {"config.mounts[1]", func(c *config) {
			c.Mounts[1].UidMappings = []*runtimeapi.IDMapping{{HostId: 1, Length: 1}}
		}},
		"empty mapping": {"config.mounts[1].gidMappings[0].length", func(c *config) {
			c.Mounts[1].UidMappings, c.Mounts[1].GidMappings = []*runtimeapi.IDMapping{{Length: 1}}, []*runtimeapi.IDMapping{{}}
		}},
		"image and path":             {"config.mounts[2].host_path", func(c *config) { c.Mounts[2].HostPath = "/x" }},
		"image without name":         {"config.mounts[2].image", func(c *config) { c.Mounts[2].Image.Image = "" }},
		"writable image":             {"config.mounts[2].readonly", func(c *config) { c.Mounts[2].Readonly = false }},
		"path out of an image":       {"config.mounts[2].image_sub_path", func(c *config) { c.Mounts[2].ImageSubPath = "../x" }},
		"relative device":            {"config.devices[0].host_path", func(c *config) { c.Devices[0].HostPath = "fuse" }},
		"device to nowhere":          {"config.devices[0].container_path", func(c *config) { c.Devices[0].ContainerPath = "" }},
		"device without permissions": {"config.devices[0].permissions", func(c *config) { c.Devices[0].Permissions = "" }},
		"device to execute":          {"config.devices[0].permissions", func(c *config) { c.Devices[0].Permissions = "rx" }},
		"unqualified CDI name":       {"config.CDI_devices[0].name", func(c *config) { c.CDIDevices[0].Name = "gpu0" }},
		"negative shares":            {"config.linux.resources.cpu_shares", func(c *config) { c.Linux.Resources.CpuShares = -1 }},
		"short period":               {"config.linux.resources.cpu_period", func(c *config) { c.Linux.Resources.CpuPeriod = 999 }},
		"long period":                {"config.linux.resources.cpu_period", func(c *config) { c.Linux.Resources.CpuPeriod = 1000001 }},
		"small quota":                {"config.linux.resources.cpu_quota", func(c *config) { c.Linux.Resources.CpuQuota = 999 }},
		"negative memory":            {"config.linux.resources.memory_limit_in_bytes", func(c *config) { c.Linux.Resources.MemoryLimitInBytes = -1 }},
		"swap below memory":          {"config.linux.resources.memory_swap_limit_in_bytes", func(c *config) { c.Linux.Resources.MemorySwapLimitInBytes = 1 }},
		"negative swap":              {"config.linux.resources.memory_swap_limit_in_bytes", func(c *config) { c.Linux.Resources.MemorySwapLimitInBytes = -2 }},
		"oom score too high":         {"config.linux.resources.oom_score_adj", func(c *config) { c.Linux.Resources.OomScoreAdj = 1001 }},
		"CPUs in words":              {"config.linux.resources.cpuset_cpus", func(c *config) { c.Linux.Resources.CpusetCpus = "all" }},
		"CPUs backwards":             {"config.linux.resources.cpuset_cpus", func(c *config) { c.Linux.Resources.CpusetCpus = "3-1" }},
		"nodes end in a comma":       {"config.linux.resources.cpuset_mems", func(c *config) { c.Linux.Resources.CpusetMems = "0," }},
		"huge page size":             {"config.linux.resources.hugepage_limits[0].page_size", func(c *config) { c.Linux.Resources.HugepageLimits[0].PageSize = "2MiB" }},
		"cgroup file outside of the cgroup": {`config.linux.resources.unified["../memory.max"]`, func(c *config) {
			c.Linux.Resources.Unified = map[string]string{"../memory.max": "1"}
		}},
		"cgroup file, no controller": {`config.linux.resources.unified["high"]`, func(c *config) {
			c.Linux.Resources.Unified = map[string]string{"high": "1"}
		}},
		"privileged in a plain pod": {security + "privileged", func(c *config) { c.Linux.SecurityContext.Privileged = true }},
		"unknown pid mode":          {security + "namespace_options.pid", func(c *config) { c.Linux.SecurityContext.NamespaceOptions.Pid = 99 }},
		"target without id":         {security + "namespace_options.target_id", func(c *config) { c.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET }},
		"another user namespace": {security + "namespace_options.userns_options", func(c *config) {
			m := []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}
			c.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtimeapi.UserNamespace{Uids: m, Gids: m}
		}},
		"negative user":          {security + "run_as_user", func(c *config) { c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{Value: -1} }},
		"unknown policy":         {security + "supplemental_groups_policy", func(c *config) { c.Linux.SecurityContext.SupplementalGroupsPolicy = 99 }},
		"user twice":             {security + "run_as_username", func(c *config) { c.Linux.SecurityContext.RunAsUser = &runtimeapi.Int64Value{} }},
		"group alone":            {security + "run_as_group", func(c *config) { c.Linux.SecurityContext.RunAsUsername = "" }},
		"group in the user name": {security + "run_as_username", func(c *config) { c.Linux.SecurityContext.RunAsUsername = "a:b" }},
		"user name in lines":     {security + "run_as_username", func(c *config) { c.Linux.SecurityContext.RunAsUsername = "a\nb" }},
		"no capability":          {security + "capabilities.add_capabilities[0]", func(c *config) { c.Linux.SecurityContext.Capabilities.AddCapabilities[0] = "" }},
		"two capabilities":       {security + "capabilities.drop_capabilities[0]", func(c *config) { c.Linux.SecurityContext.Capabilities.DropCapabilities[0] = "A,B" }},
		"ambient capability": {security + "capabilities.add_ambient_capabilities[0]", func(c *config) {
			c.Linux.SecurityContext.Capabilities.AddAmbientCapabilities = []string{long}
		}},
		"relative masked path":    {security + "masked_paths[0]", func(c *config) { c.Linux.SecurityContext.MaskedPaths[0] = "proc" }},
		"empty read-only path":    {security + "readonly_paths[0]", func(c *config) { c.Linux.SecurityContext.ReadonlyPaths[0] = "" }},
		"apparmor with a newline": {security + "apparmor.localhost_ref", func(c *config) { c.Linux.SecurityContext.Apparmor.LocalhostRef = "a\n" }},
		"unknown seccomp type": {security + "seccomp.profile_type", func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: 99}
		}},
		"seccomp profile without a path": {security + "seccomp.localhost_ref", func(c *config) {
			c.Linux.SecurityContext.Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		}},
		"old apparmor profile": {security + "apparmor_profile", func(c *config) {
			c.Linux.SecurityContext.Apparmor = nil
			c.Linux.SecurityContext.ApparmorProfile = "web" //nolint:staticcheck // Old clients send it.
		}},
		"old seccomp profile": {security + "seccomp_profile_path", func(c *config) {
			c.Linux.SecurityContext.SeccompProfilePath = "localhost/web.json" //nolint:staticcheck // Old clients send it.
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			req := containerRequest()
			test.change(req.Config)
			err := CreateContainer(req, sandboxRequest().GetConfig())
			checkRefused(t, err, test.field)
			if ofImage := strings.HasPrefix(test.field, "config.mounts[2]"); ofImage != errors.Is(err, crierrors.ErrImageVolumeMountFailed) {
				t.Errorf("%v: is ErrImageVolumeMountFailed: %v", err, !ofImage)
			}
		})
	}
}

// Variables often contain secrets, so no error may repeat their values.
func TestValuesOfVariablesStaySecret(t *testing.T) {
	req := containerRequest()
	req.Config.Envs = []*runtimeapi.KeyValue{{Key: "TOKEN", Value: []byte("hunter2\x00")}}
	err := CreateContainer(req, nil)
	checkRefused(t, err, "config.envs[0].value")
	if strings.Contains(err.Error(), "hunter2") {
		t.Error(err)
	}
}

// A container is checked against the sandbox as it was created, not its copy in the request.
func TestContainerIsCheckedAgainstItsSandbox(t *testing.T) {
	req, sandbox := containerRequest(), sandboxRequest().GetConfig()
	req.Config.Linux.SecurityContext.Privileged = true
	req.SandboxConfig.Linux.SecurityContext.Privileged = true
	checkRefused(t, CreateContainer(req, sandbox), "config.linux.security_context.privileged")
	sandbox.Linux.SecurityContext.Privileged = true
	test.Check(t, CreateContainer(req, sandbox))
	m := []*runtimeapi.IDMapping{{HostId: 1 << 16, Length: 1 << 16}}
	userns := &runtimeapi.UserNamespace{Uids: m, Gids: m}
	sandbox.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	checkRefused(t, CreateContainer(req, sandbox), "config.linux.security_context.namespace_options.userns_options")
	req.Config.Linux.SecurityContext.NamespaceOptions.UsernsOptions = userns
	test.Check(t, CreateContainer(req, sandbox))
	req.SandboxConfig.LogDirectory = "relative"
	checkRefused(t, CreateContainer(req, sandbox), "sandbox_config.log_directory")
}

func TestOldProfiles(t *testing.T) {
	for profile, ok := range map[string]bool{
		"": true, "unconfined": true, "runtime/default": true, "docker/default": true, "localhost//etc/a.json": true,
		"localhost/": false, "localhost/a.json": false, "RuntimeDefault": false,
	} {
		req := containerRequest()
		req.Config.Linux.SecurityContext.SeccompProfilePath = profile //nolint:staticcheck // Old clients send it.
		if err := CreateContainer(req, nil); (err == nil) != ok {
			t.Errorf("%q: %v", profile, err)
		}
	}
}
