package containerdapi

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	containersapi "github.com/containerd/containerd/api/services/containers/v1"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/handler"
)

// view presents sandboxes and containers as containers of containerd's API. As under containerd's
// CRI, a label distinguishes them.
type view struct {
	pods   *pod.Registry
	images *image.Store
	// selfChecks includes berth's own sandboxes.
	selfChecks bool
}

// kindLabel is the label of containerd's CRI that agents look for.
const kindLabel = "io.cri-containerd.kind"

// The values of kindLabel.
const kindContainer, kindSandbox = "container", "sandbox"

// sandboxImage is the image name of sandboxes. They have no image, but agents omit containers
// without an image name.
const sandboxImage = "berth.dev/pause"

const specType = "types.containerd.io/opencontainers/runtime-spec/1/Spec"

// subject is a sandbox or a container. One of the two is nil.
type subject struct {
	sandbox   *pod.Sandbox
	container *pod.Container
}

// find returns the subject with that full id, or errdefs.ErrNotFound.
func (v *view) find(id string) (subject, error) {
	if c, err := v.pods.Index.Container(id); err == nil && c.ID() == id {
		return subject{container: c}, nil
	}
	if s, err := v.pods.Index.Sandbox(id); err == nil && s.ID() == id {
		return subject{sandbox: s}, nil
	}
	return subject{}, fmt.Errorf("container %.100q: %w", id, errdefs.ErrNotFound)
}

// all returns the sandboxes and containers.
func (v *view) all() []subject {
	var all []subject
	for _, s := range v.pods.Index.AllSandboxes() {
		all = append(all, subject{sandbox: s})
	}
	for _, c := range v.pods.Index.AllContainers() {
		all = append(all, subject{container: c})
	}
	return all
}

// message returns a container of containerd's API. It also finds a container that is being created:
// its shim looks it up then, and agents that have seen its cgroup look it up only once.
func (v *view) message(id string) (*containersapi.Container, error) {
	found, err := v.find(id)
	if err == nil {
		return v.messageOf(found), nil
	}
	if c, ok := v.pods.Containers.Get(id); ok {
		if s, ok := v.unfinished(c.Spec().Sandbox); ok {
			return v.containerMessage(id, c.Spec(), s.Spec().Definition), nil
		}
	}
	if s, ok := v.unfinished(id); ok {
		return v.sandboxMessage(id, s.Spec()), nil
	}
	return nil, err
}

// unfinished finds a sandbox that is being created or removed.
func (v *view) unfinished(id string) (*store.Object[pod.SandboxSpec, pod.SandboxStatus], bool) {
	s, ok := v.pods.Sandboxes.Get(id)
	return s, ok && (v.selfChecks || !s.Spec().SelfCheck)
}

func (v *view) messageOf(s subject) *containersapi.Container {
	if s.container != nil {
		return v.containerMessage(s.container.ID(), s.container.Spec(), s.container.Sandbox.Spec().Definition)
	}
	return v.sandboxMessage(s.sandbox.ID(), s.sandbox.Spec())
}

func (v *view) containerMessage(id string, spec *pod.ContainerSpec, d *handler.Definition) *containersapi.Container {
	var ofImage map[string]string
	if img, err := v.images.Get(spec.ImageID); err == nil {
		ofImage = img.Config.Labels
	}
	created := timestamppb.New(time.Unix(0, spec.CreatedAt))
	return &containersapi.Container{
		ID: id, Labels: labels(ofImage, spec.Config.Msg.GetLabels(), kindContainer), Image: cmp.Or(spec.ImageTag, spec.ImageRef, spec.ImageName),
		Runtime:     &containersapi.Container_Runtime{Name: runtimeName(d)},
		Spec:        specOf(v.pods.ContainerDir(id), func() *specs.Spec { return goneSpec(spec) }),
		Snapshotter: spec.Snapshotter, SnapshotKey: id, CreatedAt: created, UpdatedAt: created, Sandbox: spec.Sandbox,
	}
}

func (v *view) sandboxMessage(id string, spec *pod.SandboxSpec) *containersapi.Container {
	config := spec.Config.Msg
	created := timestamppb.New(time.Unix(0, spec.CreatedAt))
	return &containersapi.Container{
		ID: id, Labels: labels(nil, config.GetLabels(), kindSandbox), Image: sandboxImage,
		Runtime: &containersapi.Container_Runtime{Name: runtimeName(spec.Definition)},
		Spec: specOf(v.pods.ProcessBundle(id), func() *specs.Spec {
			return &specs.Spec{Process: &specs.Process{}, Hostname: config.GetHostname(), Annotations: config.GetAnnotations(), Linux: &specs.Linux{}}
		}),
		CreatedAt: created, UpdatedAt: created, Sandbox: id,
	}
}

// labels are the image's labels, overridden by the kubelet's. Pure.
func labels(image, own map[string]string, kind string) map[string]string {
	all := map[string]string{}
	maps.Copy(all, image)
	maps.Copy(all, own)
	all[kindLabel] = kind
	return all
}

func specOf(bundle string, gone func() *specs.Spec) *anypb.Any {
	text, err := os.ReadFile(filepath.Join(bundle, "config.json"))
	if err != nil {
		if text, err = json.Marshal(gone()); err != nil {
			return nil // never fails: strings only
		}
	}
	return &anypb.Any{TypeUrl: specType, Value: text}
}

func goneSpec(spec *pod.ContainerSpec) *specs.Spec {
	config := spec.Config.Msg
	process := &specs.Process{Args: append(append([]string{}, config.GetCommand()...), config.GetArgs()...), Cwd: config.GetWorkingDir()}
	for _, e := range config.GetEnvs() {
		process.Env = append(process.Env, e.GetKey()+"="+string(e.GetValue()))
	}
	return &specs.Spec{Process: process, Annotations: config.GetAnnotations(), Linux: &specs.Linux{CgroupsPath: spec.CgroupsPath}}
}

// runtimeName is the runtime's name in containerd's form, from which a shim's binary name follows.
// Pure.
func runtimeName(d *handler.Definition) string {
	program := filepath.Base(d.Path)
	if name, ok := strings.CutPrefix(program, "containerd-shim-"); ok && d.OwnShim() {
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			return "io.containerd." + name[:i] + "." + name[i+1:]
		}
	}
	return "dev.berth." + program
}
