package checkpoint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Fits says, as an error that names all of it, in what a container differs from the one of
// the archive so that CRIU could not let that go on in it. Pure.
func (was *Spec) Fits(now *specs.Spec) error {
	var differs []string
	switch terminal := now.Process != nil && now.Process.Terminal; {
	case was.Process.Terminal && !terminal:
		differs = append(differs, "it had a terminal; set tty: true")
	case !was.Process.Terminal && terminal:
		differs = append(differs, "it had no terminal; set tty: false")
	}
	for _, m := range was.Mounts {
		if isBind(m.Type, m.Options) && !slices.ContainsFunc(now.Mounts, func(n specs.Mount) bool { return n.Destination == m.Destination }) {
			differs = append(differs, fmt.Sprintf("it had a mount at %.300q; add a volume there", m.Destination))
		}
	}
	var spaces []specs.LinuxNamespace
	var masked []string
	if now.Linux != nil {
		spaces, masked = now.Linux.Namespaces, now.Linux.MaskedPaths
	}
	if len(was.Linux.MaskedPaths) > 0 && len(masked) == 0 {
		differs = append(differs, "it had no access to masked files of /proc; set privileged: false")
	}
	for _, kind := range []struct {
		specs.LinuxNamespaceType
		named string
	}{{specs.NetworkNamespace, "hostNetwork"}, {specs.PIDNamespace, "hostPID and shareProcessNamespace"}} {
		if spaceOf(was.Linux.Namespaces, kind.LinuxNamespaceType) != spaceOf(spaces, kind.LinuxNamespaceType) {
			differs = append(differs, fmt.Sprintf("it had another %s namespace; make %s of the pod the same", kind.LinuxNamespaceType, kind.named))
		}
	}
	if spaceOf(was.Linux.Namespaces, specs.UserNamespace) != theHosts {
		differs = append(differs, "it had a user namespace, which the runtime's CRIU does not support")
	}
	if len(differs) == 0 {
		return nil
	}
	return fmt.Errorf("the container of the checkpoint cannot go on in this one: %s: %w", strings.Join(differs, "; "), errdefs.ErrFailedPrecondition)
}

func isBind(kind string, options []string) bool {
	return kind == "bind" || slices.Contains(options, "bind") || slices.Contains(options, "rbind")
}

// space is whose namespace a container has.
type space int

const (
	theHosts space = iota
	itsOwn
	joined
)

func spaceOf(all []specs.LinuxNamespace, kind specs.LinuxNamespaceType) space {
	for _, n := range all {
		if n.Type != kind {
			continue
		}
		if n.Path == "" {
			return itsOwn
		}
		return joined
	}
	return theHosts
}
