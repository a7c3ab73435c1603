package router

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/distribution/reference"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// pulls knows which pods are whose by their uids, and who pulled what with which
// credentials: where there are several stores of images, a container may have to
// get its image into its own store. Credentials are kept in memory, for their
// own pod only, and as long as it is there.
type pulls struct {
	mu   sync.Mutex
	pods map[string]*podPulls // by uid
	// misses are by the names and ids of images.
	misses map[string]miss
}

type podPulls struct {
	// sandbox is the newest one of the pod.
	sandbox string
	// credentials are those of the pod's own pulls, by the image's repository: it
	// is for repositories that registries give and refuse access, and what was
	// pulled by a tag may have to be pulled by its digest.
	credentials map[string]*runtimeapi.AuthConfig
}

// miss is an image that a container could not be given.
type miss struct {
	// sandbox waits for it, and backend has no such image.
	sandbox, backend string
	until            time.Time
}

// missFor is how long an image counts as missing that a container could not be
// given. A kubelet waits five minutes at most before it tries again.
const missFor = 6 * time.Minute

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
	maps.DeleteFunc(p.misses, func(_ string, m miss) bool { return m.sandbox == sandbox })
}

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
	listed, err := lists{owners: o}.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil
	}
	var newest *runtimeapi.PodSandbox
	for _, s := range understood(listed).GetItems() {
		if s.GetMetadata().GetUid() == uid && (newest == nil || s.GetCreatedAt() > newest.GetCreatedAt()) {
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
	switch name := repository(req.GetImage().GetImage()); {
	case pod == nil:
	case req.GetAuth() == nil:
		delete(pod.credentials, name)
	default:
		pod.credentials[name] = proto.CloneOf(req.GetAuth())
	}
}

// repository is where an image's name says that it is.
func repository(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.Name()
	}
	return image
}

// whole is an image's name with what may be left out of it: a kubelet pulls by
// another spelling than the user's.
func whole(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}

// credentials are those with which the pod itself pulled from the image's
// repository, or nil.
func (p *pulls) credentials(uid, image string) *runtimeapi.AuthConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pod := p.pods[uid]; pod != nil {
		return pod.credentials[repository(image)]
	}
	return nil
}

// lacks has an image be missing for a while, by all its names: a container could
// not be given it by who has been told that it is there, and who is told that it
// is not pulls it with the secrets of the pod.
func (p *pulls) lacks(sandbox string, b Backend, names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.misses == nil {
		p.misses = map[string]miss{}
	}
	for _, name := range names {
		if name != "" {
			p.misses[whole(name)] = miss{sandbox, b.ID(), time.Now().Add(missFor)}
		}
	}
}

// came ends that an image is missing: it was pulled into the store that lacked it.
func (p *pulls) came(b Backend, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m, there := p.misses[whole(name)]; there && m.backend == b.ID() {
		maps.DeleteFunc(p.misses, func(_ string, other miss) bool { return other.sandbox == m.sandbox && other.backend == m.backend })
	}
}

// missed says whether an image counts as missing. A pod that somebody else has
// removed waits for none.
func (p *pulls) missed(o *owners, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.misses) == 0 {
		return false
	}
	maps.DeleteFunc(p.misses, func(_ string, m miss) bool {
		return time.Now().After(m.until) || o.sandboxes.get(m.sandbox) == nil
	})
	_, there := p.misses[whole(name)]
	return there
}
