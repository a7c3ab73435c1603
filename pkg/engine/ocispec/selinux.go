package ocispec

import (
	"errors"
	"fmt"
	"regexp"
	"sync"
	"syscall"

	"github.com/containerd/log"
	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// levelForm is the level of an MLS or MCS policy: s0, s0-s1, s0:c1,c2, s0:c0.c1023.
var levelForm = regexp.MustCompile(`^s\d+(-s\d+)?(:c\d+([.,]c\d+)*)?(-s\d+:c\d+([.,]c\d+)*)?$`)

// selinuxUsable reports whether containers of this node get SELinux labels. Debian's policy names a
// type for containers that it does not define: no container could start with that label.
var selinuxUsable = sync.OnceValue(func() bool {
	if !selinux.GetEnabled() {
		return false
	}
	process, _, err := label.InitLabels(nil)
	if err == nil {
		selinux.ReleaseLabel(process)
		err = selinux.SecurityCheckContext(process)
	}
	if err != nil {
		log.L.WithError(err).WithField("label", process).
			Warn("SELinux policy of this node does not define the container label; containers run without labels. Install a container policy, such as container-selinux, and restart berth")
	}
	return err == nil
})

// SELinuxLabels returns the labels for a sandbox (sandboxLabel empty) or a container (its sandbox's
// process label), and reserves their categories. The caller counts the users of the categories and
// releases them with selinux.ReleaseLabel. Without options a sandbox gets new categories, and a
// container its sandbox's. On a node without SELinux, or with a policy without containers, both
// labels are empty regardless of the request, as with other CRI daemons.
func SELinuxLabels(o *runtimeapi.SELinuxOption, sandboxLabel string) (process, mount string, err error) {
	if !selinuxUsable() {
		return "", "", nil
	}
	options, err := labelOptions(o)
	if err != nil {
		return "", "", err
	}
	if len(options) == 0 && sandboxLabel != "" {
		if options, err = selinux.DupSecOpt(sandboxLabel); err != nil {
			return "", "", fmt.Errorf("SELinux label %q of the sandbox: %w", sandboxLabel, err)
		}
	}
	process, mount, err = label.InitLabels(options)
	if err != nil {
		return "", "", fmt.Errorf("SELinux options: %w", err)
	}
	return process, mount, nil
}

func labelOptions(o *runtimeapi.SELinuxOption) ([]string, error) {
	var out []string
	for _, f := range []struct{ key, value string }{
		{"user", o.GetUser()}, {"role", o.GetRole()}, {"type", o.GetType()}, {"level", o.GetLevel()},
	} {
		if f.value == "" {
			continue
		}
		if f.key == "level" && !levelForm.MatchString(f.value) {
			return nil, invalid("selinux_options: level %q is not of the form s0:c1,c2", f.value)
		}
		out = append(out, f.key+":"+f.value)
	}
	return out, nil
}

// Relabel applies the container's label to mount sources with selinux_relabel, the volumes of the
// image, and the sandbox's files. It does nothing without SELinux and for privileged containers,
// and skips file systems without labels.
func Relabel(c Container) error {
	if !selinuxUsable() || c.MountLabel == "" || c.Config.GetLinux().GetSecurityContext().GetPrivileged() {
		return nil
	}
	sb := c.Sandbox
	paths := []string{sb.HostnamePath, sb.HostsPath, sb.ResolvConfPath, sb.ShmPath}
	for _, m := range c.Config.GetMounts() {
		if m.GetSelinuxRelabel() && !isImageMount(m) {
			paths = append(paths, m.GetHostPath())
		}
	}
	for _, v := range c.Volumes {
		paths = append(paths, v.Source)
	}
	for _, p := range paths {
		if p == "" {
			continue
		}
		if err := label.Relabel(p, c.MountLabel, false); err != nil && !errors.Is(err, syscall.ENOTSUP) {
			return fmt.Errorf("relabel %s: %w", p, err)
		}
	}
	return nil
}
