package validate

import (
	"fmt"
	"path"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// mountOptions are the options that the CRI allows in addition to those with fields.
var mountOptions = []string{"noexec", "nodev", "nosuid"}

func mount(field string, m *runtimeapi.Mount) error {
	return first(
		mountTarget(field+".container_path", m.GetContainerPath()),
		mountSource(field, m),
		known(field+".propagation", m.GetPropagation(), runtimeapi.MountPropagation_name),
		recursiveReadOnly(field+".recursive_read_only", m),
		each(field+".mount_options", m.GetMountOptions(), mountOption),
		idmap(field, m),
	)
}

// mountTarget checks the destination of a mount: any path except the root.
func mountTarget(field, p string) error {
	return first(
		absolute(field, p, required),
		invalidIf(path.Clean(p) == "/", field, "%s would cover the container's root; mount below it", quoted(p)),
	)
}

// mountSource checks that a mount has either a host path or an image.
func mountSource(field string, m *runtimeapi.Mount) error {
	if m.GetImage() != nil {
		return imageMount(field, m)
	}
	// The kubelet sets image_sub_path for every volume with a subPath, and host_path includes it
	// already.
	return absolute(field+".host_path", m.GetHostPath(), required)
}

// imageMount checks an image volume. Its errors begin with the word by which the kubelet identifies
// them.
func imageMount(field string, m *runtimeapi.Mount) error {
	err := first(
		invalidIf(m.GetHostPath() != "", field+".host_path", "is set beside image; set one of them"),
		containerImage(field+".image", m.GetImage()),
		invalidIf(!m.GetReadonly(), field+".readonly", "is false, but images are mounted read-only; set it"),
		inside(field+".image_sub_path", m.GetImageSubPath(), "the image"),
	)
	if err != nil {
		return fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
	}
	return nil
}

func recursiveReadOnly(field string, m *runtimeapi.Mount) error {
	if !m.GetRecursiveReadOnly() {
		return nil
	}
	return first(
		invalidIf(!m.GetReadonly(), field, "is set without readonly; set both"),
		invalidIf(m.GetPropagation() != runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
			field, "is set with %s; use PROPAGATION_PRIVATE", m.GetPropagation()),
	)
}

func mountOption(field, o string) error {
	return invalidIf(!slices.Contains(mountOptions, o), field,
		"%s is not allowed; use %s, %s or %s", quoted(o), mountOptions[0], mountOptions[1], mountOptions[2])
}

func idmap(field string, m *runtimeapi.Mount) error {
	uids, gids := m.GetUidMappings(), m.GetGidMappings()
	return first(
		invalidIf((len(uids) == 0) != (len(gids) == 0), field, "has only one of uidMappings and gidMappings; send both or none"),
		each(field+".uidMappings", uids, mapping),
		each(field+".gidMappings", gids, mapping),
	)
}

// ImageMappings refuses mappings of an image's mount that differ from those of the pod's user
// namespace; pod is nil without one. Mappings may be omitted, because an image always gets the
// pod's.
func ImageMappings(m *runtimeapi.Mount, pod *runtimeapi.UserNamespace) error {
	check := func(field string, ids, of []*runtimeapi.IDMapping) error {
		switch {
		case len(ids) == 0 || pod != nil && sameMappings(ids, of):
			return nil
		case pod == nil:
			return invalid(field, "are given for an image in a pod without a user namespace; leave them out")
		}
		return invalid(field, "differ from those of the pod sandbox, which an image always gets; send the same")
	}
	return first(
		check("uidMappings", m.GetUidMappings(), pod.GetUids()),
		check("gidMappings", m.GetGidMappings(), pod.GetGids()),
	)
}
