package manifest

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Target describes the pod to restore and its node.
type Target struct {
	Handler Handler
	Node    Node
	Pod     *runtimeapi.PodSandboxConfig
	// Containers are the new configurations; Images are their images, by container name.
	Containers []*runtimeapi.ContainerConfig
	Images     map[string]Image
}

// maxNamed limits the items in one error.
const maxNamed = 8

// Fits returns an error that lists the differences which prevent a restore. The CRI demands the
// comparison of images, commands, environments and credentials; the other compared properties
// cannot change under running processes. Pure.
func (m *Manifest) Fits(to *Target) error {
	var all []string
	differ := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	if m.Node.Architecture != to.Node.Architecture {
		differ("it was made on %[1]s, and this node is %[2]s; restore it on a node with %[1]s", m.Node.Architecture, to.Node.Architecture)
	}
	if lacks := missing(m.Node.CPUFeatures, to.Node.CPUFeatures); len(lacks) > 0 {
		differ("this node's processor lacks %s; restore it on one that has them", shortened(lacks, ", "))
	}
	was, now := m.Handler, to.Handler
	if !SameBinaries(was.Binaries, now.Binaries) {
		differ("it was made by %s, and the handler has %s; install that version, or use a handler that has it", describeBinaries(was.Binaries), describeBinaries(now.Binaries))
	}
	if !slices.Equal(was.Flags, now.Flags) {
		differ("the runtime was called with the flags %q, and the handler has %q; give the handler the same flags", was.Flags, now.Flags)
	}
	pod := &runtimeapi.PodSandboxConfig{}
	if err := protojson.Unmarshal(m.Pod, pod); err != nil {
		return damaged("its pod cannot be decoded: %v", err)
	}
	for _, field := range differing(fixedOfPod(pod), fixedOfPod(to.Pod)) {
		differ("the pod's %s differs; request the value in the checkpoint", field)
	}
	asked := map[string]*runtimeapi.ContainerConfig{}
	for _, c := range to.Containers {
		asked[c.GetMetadata().GetName()] = c
	}
	for _, c := range m.Containers {
		config, ok := asked[c.Name]
		if !ok {
			differ("the container %q is missing in the request", c.Name)
			continue
		}
		delete(asked, c.Name)
		found, err := c.differences(config, to.Images[c.Name])
		if err != nil {
			return err
		}
		all = append(all, found...)
	}
	for _, name := range slices.Sorted(maps.Keys(asked)) {
		differ("the checkpoint has no container %q", name)
	}
	if len(all) == 0 {
		return nil
	}
	return fmt.Errorf("the checkpoint does not match the request: %s: %w", shortened(all, "; "), errdefs.ErrInvalidArgument)
}

func (c *Container) differences(asked *runtimeapi.ContainerConfig, image Image) ([]string, error) {
	var all []string
	if c.Image.ID != image.ID {
		all = append(all, fmt.Sprintf("container %q ran image %s (%s), and is to run %s; request the image that it ran", c.Name, c.Image.Name, c.Image.ID, image.ID))
	}
	config := &runtimeapi.ContainerConfig{}
	if err := protojson.Unmarshal(c.Config, config); err != nil {
		return nil, damaged("its container %q cannot be decoded: %v", c.Name, err)
	}
	for _, field := range differing(fixedOfContainer(config), fixedOfContainer(asked)) {
		all = append(all, fmt.Sprintf("container %q: %s differs; request the value in the checkpoint", c.Name, field))
	}
	return all, nil
}

// SameBinaries reports whether programs have the same content.
func SameBinaries(a, b []Binary) bool {
	return slices.EqualFunc(a, b, func(a, b Binary) bool { return a.SHA256 == b.SHA256 })
}

func describeBinaries(all []Binary) string {
	var words []string
	for _, b := range all {
		words = append(words, fmt.Sprintf("%s (%s, sha256 %.12s)", b.Version, b.Path, b.SHA256))
	}
	return strings.Join(words, ", ")
}

// fixedOfPod returns the configuration of a pod without the fields that may differ. A new pod has
// other names, and is on another network.
func fixedOfPod(c *runtimeapi.PodSandboxConfig) *runtimeapi.PodSandboxConfig {
	fixed := proto.CloneOf(c)
	fixed.Metadata, fixed.Hostname, fixed.LogDirectory, fixed.DnsConfig, fixed.PortMappings, fixed.Labels = nil, "", "", nil, nil, nil
	fixed.Annotations = ofRuntime(c.GetAnnotations())
	if l := fixed.GetLinux(); l != nil {
		l.CgroupParent, l.Overhead, l.Resources = "", nil, nil
	}
	return fixed
}

// fixedOfContainer returns the configuration of a container without the fields that may differ. Its
// image is compared by id, and the files of the node behind its mounts may be different.
func fixedOfContainer(c *runtimeapi.ContainerConfig) *runtimeapi.ContainerConfig {
	fixed := proto.CloneOf(c)
	fixed.Metadata, fixed.Image, fixed.LogPath, fixed.Labels = nil, nil, "", nil
	fixed.Annotations = ofRuntime(c.GetAnnotations())
	for _, m := range fixed.GetMounts() {
		m.HostPath = ""
	}
	slices.SortFunc(fixed.Mounts, func(a, b *runtimeapi.Mount) int { return strings.Compare(a.GetContainerPath(), b.GetContainerPath()) })
	for _, d := range fixed.GetDevices() {
		d.HostPath = ""
	}
	slices.SortStableFunc(fixed.Envs, func(a, b *runtimeapi.KeyValue) int { return strings.Compare(a.GetKey(), b.GetKey()) })
	if l := fixed.GetLinux(); l != nil {
		l.Resources = nil
	}
	return fixed
}

// ofRuntime returns the annotations that configure gVisor itself.
func ofRuntime(annotations map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range annotations {
		if strings.HasPrefix(key, "dev.gvisor.") && !strings.HasPrefix(key, "dev.gvisor.internal.") && !strings.HasSuffix(key, ".source") {
			kept[key] = value
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return kept
}

// differing lists the fields in which two messages of one type differ. Pure.
func differing(a, b protoreflect.ProtoMessage) []string {
	all := compare(a.ProtoReflect(), b.ProtoReflect(), "")
	slices.Sort(all)
	return all
}

func compare(a, b protoreflect.Message, at string) (all []string) {
	fields := a.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		name := at + string(f.Name())
		switch {
		case a.Get(f).Equal(b.Get(f)):
		case f.Message() == nil || f.IsList() || f.IsMap():
			all = append(all, name)
		case a.Has(f) && b.Has(f):
			all = append(all, compare(a.Get(f).Message(), b.Get(f).Message(), name+".")...)
		case !empty(a, f) || !empty(b, f): // an empty message equals an absent one
			all = append(all, name)
		}
	}
	if !bytes.Equal(a.GetUnknown(), b.GetUnknown()) {
		all = append(all, at+"(a field that this version of berth does not support)")
	}
	return all
}

func empty(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	return proto.Size(m.Get(f).Message().Interface()) == 0
}

// missing returns the items of wanted that are not in have, which is sorted.
func missing(wanted, have []string) []string {
	return slices.DeleteFunc(slices.Clone(wanted), func(one string) bool {
		_, found := slices.BinarySearch(have, one)
		return found
	})
}

func shortened(all []string, separator string) string {
	if more := len(all) - maxNamed; more > 0 {
		return strings.Join(all[:maxNamed], separator) + fmt.Sprintf("%sand %d more", separator, more)
	}
	return strings.Join(all, separator)
}
