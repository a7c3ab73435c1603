// Package ocispec converts a CRI request to the OCI spec for a runtime.
//
// Build and BuildSandboxProcess are functions of their input: the request, the image's
// configuration, the handler's Definition, the runtime's features (probe.Runtime), and the facts of
// the node (Node). They access the machine only through Node's function fields, so that every
// situation is one golden file in testdata.
//
// These functions access the machine themselves: DetectNode (facts of the machine), ResolveUser
// (the image's user database), CheckMounts (propagation of mount sources), CheckProc, CheckProcOf
// and ResolveTargets (mounts over /proc), SELinuxLabels, Relabel, ApplyCDI.
//
// A container is created in this order: ResolveUser and ResolveTargets on the mounted root
// filesystem, CheckMounts, creation of the paths of HostPathsToCreate, Build, ApplyCDI, and Fit
// again after any other change of the spec (CDI, NRI).
//
// Package validate has already checked requests. Errors are FailedPrecondition if this node or
// runtime cannot fulfil a request, and InvalidArgument if the request is wrong on every node. A
// field that affects what the workload may do or see is omitted only if gVisor ignores or refuses
// it.
package ocispec

import (
	"cmp"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/berth-cri/berth/pkg/probe"
)

// Build returns the spec of a container. Its root filesystem is "rootfs" in the bundle.
func Build(c Container, n Node) (*specs.Spec, error) {
	sc := c.Config.GetLinux().GetSecurityContext()
	s, err := newSpec(c.Base)
	if err != nil {
		return nil, err
	}
	if err := setProcess(s, c, n); err != nil {
		return nil, err
	}
	if s.Linux.Namespaces, err = containerNamespaces(c, n); err != nil {
		return nil, err
	}
	if err := setUserNS(s, c.Sandbox); err != nil {
		return nil, err
	}
	if err := setMounts(s, c, n); err != nil {
		return nil, err
	}
	if err := setDevices(s, c, n); err != nil {
		return nil, err
	}
	if err := setConfinement(s, c, n); err != nil {
		return nil, err
	}
	resources := c.Config.GetLinux().GetResources()
	if s.Linux.Resources, err = UpdateResources(s.Linux.Resources, resources, n); err != nil {
		return nil, err
	}
	// Without a score a container would inherit its parent's low score, and the OOM killer would
	// spare the container.
	if resources != nil || s.Process.OOMScoreAdj == nil {
		s.Process.OOMScoreAdj = clampOOMScoreAdj(resources.GetOomScoreAdj(), n)
	}
	s.Linux.CgroupsPath = c.CgroupsPath
	s.Root.Readonly = sc.GetReadonlyRootfs()
	s.Annotations = annotations(s.Annotations, c.Sandbox.Definition, c.Sandbox.Config, c.Config, containerAnnotations(c))
	if filtersByAnnotation(s, c.Runtime, c.Sandbox.Definition) {
		s.Linux.Seccomp = nil
	}
	return s, Fit(s, c.Runtime)
}

func setProcess(s *specs.Spec, c Container, n Node) (err error) {
	p := s.Process
	if p.Args, err = commandLine(c.Config, c.Image); err != nil {
		return err
	}
	// A pod in the node's network gets the requested hostname only here and in /etc/hostname; its
	// UTS namespace is the node's.
	hostname := cmp.Or(c.Sandbox.Config.GetHostname(), n.Hostname)
	if p.Env, err = environment(p.Env, hostname, c.Config, c.Image); err != nil {
		return err
	}
	p.Cwd = workingDir(c.Config, c.Image)
	p.Terminal = c.Config.GetTty()
	p.User = specs.User{UID: c.User.UID, GID: c.User.GID, AdditionalGids: slices.Clone(c.User.AdditionalGids)}
	p.NoNewPrivileges = c.Config.GetLinux().GetSecurityContext().GetNoNewPrivs()
	return nil
}

// setConfinement sets everything that restricts a container. Capabilities come first, because the
// default seccomp filter depends on them.
func setConfinement(s *specs.Spec, c Container, n Node) (err error) {
	sc := c.Config.GetLinux().GetSecurityContext()
	if s.Process.Capabilities, err = capabilities(s.Process.Capabilities, sc, n, c.Runtime); err != nil {
		return err
	}
	//nolint:staticcheck // The deprecated field is all that old clients send.
	if s.Linux.Seccomp, err = seccompOf(sc.GetSeccomp(), sc.GetSeccompProfilePath(), sc.GetPrivileged(), s.Linux.Seccomp, s.Process.Capabilities.Bounding, n, c.Runtime); err != nil {
		return err
	}
	if s.Process.ApparmorProfile, err = apparmorFor(sc, s.Process.ApparmorProfile, n); err != nil {
		return err
	}
	setLabels(s, c.ProcessLabel, c.MountLabel, sc.GetPrivileged(), c.Runtime)
	// The lists are used exactly as sent: protobuf does not distinguish an empty list from none,
	// and both mean that nothing is masked (procMount: Unmasked).
	if !sc.GetPrivileged() {
		s.Linux.MaskedPaths = slices.Clone(sc.GetMaskedPaths())
		s.Linux.ReadonlyPaths = slices.Clone(sc.GetReadonlyPaths())
	}
	return nil
}

// setLabels omits the process label for gVisor, which refuses it, because SELinux is not available
// in its sandboxes.
func setLabels(s *specs.Spec, process, mount string, privileged bool, rt *probe.Runtime) {
	s.Process.SelinuxLabel, s.Linux.MountLabel = "", mount
	if !privileged && !rt.Kernel().RefusesSELinux {
		s.Process.SelinuxLabel = process
	}
}
