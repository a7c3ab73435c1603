package ocispec

import (
	"errors"
	"fmt"
	"regexp"
	"syscall"

	"github.com/opencontainers/selinux/go-selinux"
	"github.com/opencontainers/selinux/go-selinux/label"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// levelForm is the level of an MLS or MCS policy: s0, s0-s1, s0:c1,c2, s0:c0.c1023.
var levelForm = regexp.MustCompile(`^s\d+(-s\d+)?(:c\d+([.,]c\d+)*)?(-s\d+:c\d+([.,]c\d+)*)?$`)

// SELinuxLabels returns the labels for a sandbox (sandboxLabel empty) or a
// container (its sandbox's process label), and reserves the categories. The caller
// counts who has them, and ends that with selinux.ReleaseLabel. Without options a
// sandbox gets categories of its own, and a container its sandbox's. On a node without SELinux both are empty,
// whatever was asked for, as with other CRI daemons.
func SELinuxLabels(o *runtimeapi.SELinuxOption, sandboxLabel string) (process, mount string, err error) {
	if !selinux.GetEnabled() {
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

// Relabel gives the sources of mounts that ask for it (selinux_relabel), the volumes
// that the image defines, and the sandbox's files, the container's label. It does nothing without SELinux
// and for privileged containers; file systems without labels are passed over.
func Relabel(c Container) error {
	if !selinux.GetEnabled() || c.MountLabel == "" || c.Config.GetLinux().GetSecurityContext().GetPrivileged() {
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
