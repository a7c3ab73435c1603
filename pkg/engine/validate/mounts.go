package validate

import (
	"fmt"
	"path"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// mountOptions are the options that the CRI allows beside those it has fields for.
var mountOptions = []string{"noexec", "nodev", "nosuid"}

func mount(field string, m *runtimeapi.Mount) error {
	return first(
		func() error { return mountTarget(field+".container_path", m.GetContainerPath()) },
		func() error { return mountSource(field, m) },
		func() error { return known(field+".propagation", m.GetPropagation(), runtimeapi.MountPropagation_name) },
		func() error { return recursiveReadOnly(field, m) },
		func() error { return each(field+".mount_options", m.GetMountOptions(), mountOption) },
		func() error { return idmap(field, m) },
	)
}

// mountTarget checks where a mount goes: anywhere but over the whole root.
func mountTarget(field, p string) error {
	if err := absolute(field, p, required); err != nil {
		return err
	}
	if path.Clean(p) == "/" {
		return invalid(field, "%s would cover the container's root; mount below it", quoted(p))
	}
	return nil
}

// mountSource checks that a mount is of a host path or of an image, and not of
// both or none.
func mountSource(field string, m *runtimeapi.Mount) error {
	if m.GetImage() != nil {
		return imageMount(field, m)
	}
	// The kubelet sets image_sub_path for every volume with a subPath, and has
	// host_path lead there already.
	return absolute(field+".host_path", m.GetHostPath(), required)
}

// imageMount checks an image volume. Its errors begin with the word by which
// the kubelet knows them.
func imageMount(field string, m *runtimeapi.Mount) error {
	err := first(
		func() error {
			if m.GetHostPath() != "" {
				return invalid(field+".host_path", "is set beside image; set one of them")
			}
			return nil
		},
		func() error { return containerImage(field+".image", m.GetImage()) },
		func() error {
			if !m.GetReadonly() {
				return invalid(field+".readonly", "is false, but images are mounted read-only; set it")
			}
			return nil
		},
		func() error { return inside(field+".image_sub_path", m.GetImageSubPath(), "the image") },
	)
	if err != nil {
		return fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
	}
	return nil
}

func recursiveReadOnly(field string, m *runtimeapi.Mount) error {
	switch {
	case !m.GetRecursiveReadOnly():
		return nil
	case !m.GetReadonly():
		return invalid(field+".recursive_read_only", "is set without readonly; set both")
	case m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE:
		return invalid(field+".recursive_read_only", "is set with %s; use PROPAGATION_PRIVATE", m.GetPropagation())
	}
	return nil
}

func mountOption(field, o string) error {
	if !slices.Contains(mountOptions, o) {
		return invalid(field, "%s is not allowed; use %s, %s or %s", quoted(o), mountOptions[0], mountOptions[1], mountOptions[2])
	}
	return nil
}

func idmap(field string, m *runtimeapi.Mount) error {
	uids, gids := m.GetUidMappings(), m.GetGidMappings()
	if (len(uids) == 0) != (len(gids) == 0) {
		return invalid(field, "has only one of uidMappings and gidMappings; send both or none")
	}
	return first(
		func() error { return each(field+".uidMappings", uids, mapping) },
		func() error { return each(field+".gidMappings", gids, mapping) },
	)
}

// ImageMappings refuses mappings of an image's mount other than those of the pod's
// user namespace; pod is nil without one. The pod's need not be given: an image
// always belongs to its users.
func ImageMappings(m *runtimeapi.Mount, pod *runtimeapi.UserNamespace) error {
	check := func(field string, ids, of []*runtimeapi.IDMapping) error {
		switch {
		case len(ids) == 0 || pod != nil && sameMappings(ids, of):
			return nil
		case pod == nil:
			return invalid(field, "are given for an image in a pod without a user namespace; leave them out")
		}
		return invalid(field, "differ from those of the pod sandbox, whose users an image belongs to; send the same")
	}
	return first(
		func() error { return check("uidMappings", m.GetUidMappings(), pod.GetUids()) },
		func() error { return check("gidMappings", m.GetGidMappings(), pod.GetGids()) },
	)
}
