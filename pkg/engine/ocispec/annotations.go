package ocispec

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/probe"
)

// Annotations by which containerd's shims, gVisor and Kata distinguish sandboxes and containers.
// The names are containerd's; runtimes recognize them.
const (
	annotationContainerType    = "io.kubernetes.cri.container-type"
	annotationSandboxID        = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName      = "io.kubernetes.cri.sandbox-name"
	annotationSandboxNamespace = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID       = "io.kubernetes.cri.sandbox-uid"
	annotationSandboxLogDir    = "io.kubernetes.cri.sandbox-log-directory"
	annotationContainerName    = "io.kubernetes.cri.container-name"
	annotationImageName        = "io.kubernetes.cri.image-name"
	annotationCPUPeriod        = "io.kubernetes.cri.sandbox-cpu-period"
	annotationCPUQuota         = "io.kubernetes.cri.sandbox-cpu-quota"
	annotationCPUShares        = "io.kubernetes.cri.sandbox-cpu-shares"
	annotationMemory           = "io.kubernetes.cri.sandbox-memory"
)

// annotationGVisorSeccomp makes gVisor's kernel filter the system calls of a container. Without it
// gVisor does not filter them, even if the spec has a seccomp profile. Any pod may request it: an
// annotation can enable runsc's flag oci-seccomp, but not disable it.
const annotationGVisorSeccomp = "dev.gvisor.flag.oci-seccomp"

// filtersByAnnotation reports whether gVisor applies a seccomp profile only with
// annotationGVisorSeccomp, and s does not have it. Such a container gets no profile. Every such
// sandbox gets the annotation: since May 2026, gVisor filters an exec only if the sandbox has it.
func filtersByAnnotation(s *specs.Spec, rt *probe.Runtime, d *handler.Definition) bool {
	if !rt.Kernel().SeccompByAnnotation || s.Annotations[annotationGVisorSeccomp] == "true" {
		return false
	}
	byFlag := func(flag string) bool { return strings.Contains(flag, "oci-seccomp") }
	return d == nil || d.ConfigPath == "" && !slices.ContainsFunc(d.OCI.GlobalFlags, byFlag)
}

// annotationCRIUConfig is read by runc and crun.
const annotationCRIUConfig = "org.criu.config"

// passThrough copies the annotations with a matching key to out. Patterns are those of path.Match:
// "*" does not match "/". A malformed pattern matches nothing; the configuration refuses it.
func passThrough(out, annotations map[string]string, patterns []string) {
	for k, v := range annotations {
		for _, p := range patterns {
			if ok, err := path.Match(p, k); err == nil && ok {
				out[k] = v
				break
			}
		}
	}
}

// annotations merges, from weak to strong: annotations of the base spec, the handler's defaults,
// those of the pod and the container that the handler passes through, and own, which no pod can
// forge.
func annotations(base map[string]string, d *handler.Definition, pod *runtimeapi.PodSandboxConfig, container *runtimeapi.ContainerConfig, own map[string]string) map[string]string {
	out := make(map[string]string, len(base)+len(own))
	maps.Copy(out, base)
	if d != nil {
		maps.Copy(out, d.DefaultAnnotations)
		passThrough(out, pod.GetAnnotations(), d.PodAnnotations)
		passThrough(out, container.GetAnnotations(), d.ContainerAnnotations)
	}
	maps.Copy(out, own)
	return out
}

func podIdentity(sb Sandbox, kind string) map[string]string {
	m := sb.Config.GetMetadata()
	return map[string]string{
		annotationContainerType:    kind,
		annotationSandboxID:        sb.ID,
		annotationSandboxName:      m.GetName(),
		annotationSandboxNamespace: m.GetNamespace(),
		annotationSandboxUID:       m.GetUid(),
	}
}

func containerAnnotations(c Container) map[string]string {
	own := podIdentity(c.Sandbox, "container")
	own[annotationContainerName] = c.Name
	own[annotationImageName] = c.ImageName
	if c.CRIUConfig != "" {
		own[annotationCRIUConfig] = c.CRIUConfig
	}
	if c.Runtime.Kernel().SeccompByAnnotation && asksLocalSeccomp(c.Config.GetLinux().GetSecurityContext()) {
		own[annotationGVisorSeccomp] = "true"
	}
	return own
}

// sandboxAnnotations returns the pod's identity and its size, which shims of VMs read.
func sandboxAnnotations(sb Sandbox) map[string]string {
	own := podIdentity(sb, "sandbox")
	own[annotationSandboxLogDir] = sb.Config.GetLogDirectory()
	if r := sb.Config.GetLinux().GetResources(); r != nil {
		own[annotationCPUPeriod] = strconv.FormatInt(r.GetCpuPeriod(), 10)
		own[annotationCPUQuota] = strconv.FormatInt(r.GetCpuQuota(), 10)
		own[annotationCPUShares] = strconv.FormatInt(r.GetCpuShares(), 10)
		own[annotationMemory] = strconv.FormatInt(r.GetMemoryLimitInBytes(), 10)
	}
	return own
}
