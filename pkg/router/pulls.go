package router

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/handler"
)

// pulls knows which pods are whose by their uids, and who pulled what with which
// credentials: where there are several stores of images, a container may have to
// get its image into its own store. Credentials are kept in memory, for their
// own pod only, and as long as it is there.
type pulls struct {
	mu   sync.Mutex
	pods map[string]*podPulls // by uid
}

type podPulls struct {
	// sandbox is the newest one of the pod.
	sandbox string
	// credentials are those of the pod's own pulls, by the image's name.
	credentials map[string]*runtimeapi.AuthConfig
}

// made tells of a new sandbox of a pod. Pods whose sandbox somebody else has
// removed are forgotten then.
func (p *pulls) made(o *owners, uid, sandbox string) {
	if uid == "" {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.pods[uid]; pod != nil {
		pod.sandbox = sandbox
		return
	}
	maps.DeleteFunc(p.pods, func(_ string, pod *podPulls) bool { return o.sandboxes.get(pod.sandbox) == nil })
	if p.pods == nil {
		p.pods = map[string]*podPulls{}
	}
	p.pods[uid] = &podPulls{sandbox: sandbox, credentials: map[string]*runtimeapi.AuthConfig{}}
}

// removed forgets the pod of a removed sandbox, unless it has a newer one.
func (p *pulls) removed(sandbox string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for uid, pod := range p.pods {
		if pod.sandbox == sandbox {
			delete(p.pods, uid)
		}
	}
}

// uidLabel is the label by which a kubelet says which pod a sandbox is of.
const uidLabel = "io.kubernetes.pod.uid"

// pod finds the owner of a pod's newest sandbox, or nil. A pod that was there
// before the daemon started is looked for.
func (p *pulls) pod(ctx context.Context, o *owners, uid string) *Owner {
	if uid == "" {
		return nil
	}
	p.mu.Lock()
	known := p.pods[uid]
	p.mu.Unlock()
	if known != nil {
		if owner := o.sandboxes.get(known.sandbox); owner != nil {
			return owner
		}
	}
	listed, err := lists{owners: o}.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
		Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{uidLabel: uid}},
	})
	if err != nil {
		return nil
	}
	var newest *runtimeapi.PodSandbox
	for _, s := range understood(listed).GetItems() {
		if newest == nil || s.GetCreatedAt() > newest.GetCreatedAt() {
			newest = s
		}
	}
	owner := o.sandboxes.get(newest.GetId())
	if owner != nil {
		p.made(o, uid, owner.ID)
	}
	return owner
}

// remember keeps the credentials of a pod's last pull of an image, if the pod is
// still there.
func (p *pulls) remember(uid string, req *runtimeapi.PullImageRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.pods[uid]
	switch name := whole(req.GetImage().GetImage()); {
	case pod == nil:
	case req.GetAuth() == nil:
		delete(pod.credentials, name)
	default:
		pod.credentials[name] = proto.CloneOf(req.GetAuth())
	}
}

// whole is an image's name with what may be left out of it: a kubelet pulls by
// another spelling than the user's.
func whole(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}

// credentials are those with which the pod itself pulled the image, or nil.
func (p *pulls) credentials(uid, image string) *runtimeapi.AuthConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.pods[uid]; pod != nil {
		return pod.credentials[whole(image)]
	}
	return nil
}

// provide gets the image of a new container into the store of its backend, if
// another store has it and this one does not: who asked whether the image is
// there was told that it is. It returns the request to create the container with.
func (p *pulls) provide(ctx context.Context, o *owners, b Backend, req *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerRequest, error) {
	stores := o.all()
	spec := req.GetConfig().GetImage()
	if len(stores) < 2 || spec.GetImage() == "" {
		return req, nil
	}
	own, err := b.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
	if err != nil || present(own) {
		return req, nil // what is wrong with the store is said by the creation
	}
	name := pullable(ctx, stores, b, spec)
	if name == "" {
		return req, nil
	}
	pull := &runtimeapi.PullImageRequest{
		Image:         proto.CloneOf(spec),
		Auth:          p.credentials(req.GetSandboxConfig().GetMetadata().GetUid(), name),
		SandboxConfig: req.GetSandboxConfig(),
	}
	pull.Image.Image = name
	pulled, err := b.PullImage(ctx, pull)
	if err != nil {
		return nil, fmt.Errorf("the image %s is in the store of another handler and has to be pulled for this one, which failed: %w", name, err)
	}
	req = proto.CloneOf(req)
	req.Config.Image.Image = pulled.GetImageRef()
	return req, nil
}

// pullable is the name by which an image that another store has can be pulled:
// the user's, or one that the store knows it by; empty if no other store has it.
func pullable(ctx context.Context, stores []Backend, but Backend, spec *runtimeapi.ImageSpec) string {
	for _, b := range stores {
		if b.ID() == but.ID() || !prompt(b) {
			continue
		}
		bound, cancel := context.WithTimeout(ctx, storePatience)
		resp, err := b.ImageStatus(bound, &runtimeapi.ImageStatusRequest{Image: spec})
		cancel()
		if err != nil || !present(resp) {
			continue
		}
		image := understood(resp).GetImage()
		names := append(append([]string{spec.GetUserSpecifiedImage(), nameIn(spec)}, image.GetRepoDigests()...), image.GetRepoTags()...)
		if at := slices.IndexFunc(names, func(name string) bool { return name != "" }); at >= 0 {
			return names[at]
		}
	}
	return ""
}

// nameIn is what an image is called by, unless that is an id.
func nameIn(spec *runtimeapi.ImageSpec) string {
	if name := spec.GetImage(); !strings.HasPrefix(name, "sha256:") && !isFullID(name) {
		return name
	}
	return ""
}

func isFullID(s string) bool {
	return len(s) == fullID && strings.Trim(s, "0123456789abcdef") == ""
}

// asImage is the context of a call about an image of a handler's pods. The
// handler may be gone from the table; its pods keep their backend.
func (r routes) asImage(ctx context.Context, name string) (context.Context, error) {
	if to, ok := r.registry.Current().Lookup(name); ok {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	if to := r.standard(); to != nil {
		return handler.WithDefinition(ctx, to.Definition), nil
	}
	return ctx, fmt.Errorf("handler %q is not known any more: %w", name, errdefs.ErrUnavailable)
}
