package observe

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/step"
)

// PodStart is the start of a pod: the calls that its kubelet made for it.
type PodStart struct {
	Namespace, Name, UID string
	// Sandbox is empty if the sandbox was not created.
	Sandbox string
	Handler string
	Began   time.Time
	// Calls are ordered by when they ended: RunPodSandbox, then those of each container. They
	// exclude restarts of containers.
	Calls []StartCall
}

// StartCall is one call of a PodStart.
type StartCall struct {
	RPC string
	// Of is the name of the container or image.
	Of    string
	Began time.Time
	Took  time.Duration
	Code  codes.Code
	Steps []step.Step
}

// Took returns the sum of the calls' durations, without the kubelet's time between them.
func (p PodStart) Took() (all time.Duration) {
	for _, c := range p.Calls {
		all += c.Took
	}
	return all
}

// Starts records the last pod starts, in bounded memory. All methods may be called concurrently.
type Starts struct {
	mu   sync.Mutex
	pods []*podStart // oldest first
}

// podStart also holds the names of created containers, by ID, until they are started.
type podStart struct {
	PodStart
	created map[string]string
	started map[string]bool // by name
}

const (
	// MaxStarts bounds the recorded pods, and maxStartCalls the calls of each.
	MaxStarts, maxStartCalls = 256, 64
)

// NewStarts returns empty Starts.
func NewStarts() *Starts { return &Starts{} }

// Recent returns the recorded starts, newest pod first.
func (s *Starts) Recent() []PodStart {
	s.mu.Lock()
	defer s.mu.Unlock()
	var recent []PodStart
	for _, p := range slices.Backward(s.pods) {
		one := p.PodStart
		one.Calls = slices.Clone(one.Calls)
		recent = append(recent, one)
	}
	return recent
}

// note records a finished call.
func (s *Starts) note(c *call, rpc string, req, resp any, began time.Time, took time.Duration, err error) {
	if s == nil || req == nil {
		return
	}
	switch req.(type) {
	case *runtimeapi.RunPodSandboxRequest, *runtimeapi.PullImageRequest, *runtimeapi.CreateContainerRequest, *runtimeapi.StartContainerRequest:
	default:
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done := StartCall{RPC: rpc, Began: began, Took: took, Code: status.Code(err), Steps: c.steps.Steps()}
	switch r := req.(type) {
	case *runtimeapi.RunPodSandboxRequest:
		id := ""
		if made, ok := resp.(*runtimeapi.RunPodSandboxResponse); ok {
			id = made.GetPodSandboxId()
		}
		s.begin(r.GetConfig().GetMetadata(), c.handler, id, done)
	case *runtimeapi.PullImageRequest:
		uid := r.GetSandboxConfig().GetMetadata().GetUid()
		if p := s.newest(func(p *podStart) bool { return uid != "" && p.UID == uid }); p != nil {
			done.Of = shown(r.GetImage().GetImage())
			p.add(done)
		}
	case *runtimeapi.CreateContainerRequest:
		made, _ := resp.(*runtimeapi.CreateContainerResponse)
		id := r.GetPodSandboxId()
		if p := s.newest(func(p *podStart) bool { return id != "" && p.Sandbox == id }); p != nil {
			p.create(shown(r.GetConfig().GetMetadata().GetName()), made.GetContainerId(), done)
		}
	case *runtimeapi.StartContainerRequest:
		s.start(r.GetContainerId(), done)
	}
}

func (s *Starts) begin(m *runtimeapi.PodSandboxMetadata, handler, sandbox string, done StartCall) {
	if len(s.pods) >= MaxStarts {
		s.pods = slices.Delete(s.pods, 0, len(s.pods)-MaxStarts+1)
	}
	s.pods = append(s.pods, &podStart{
		PodStart: PodStart{
			Namespace: shown(m.GetNamespace()), Name: shown(m.GetName()), UID: shown(m.GetUid()),
			Sandbox: sandbox, Handler: handler, Began: done.Began, Calls: []StartCall{done},
		},
		created: map[string]string{}, started: map[string]bool{},
	})
}

// newest returns the newest start that matches wanted, or nil.
func (s *Starts) newest(wanted func(*podStart) bool) *podStart {
	for _, p := range slices.Backward(s.pods) {
		if wanted(p) {
			return p
		}
	}
	return nil
}

// start records the first start of a created container.
func (s *Starts) start(container string, done StartCall) {
	p := s.newest(func(p *podStart) bool {
		_, created := p.created[container]
		return created
	})
	if p == nil {
		return
	}
	done.Of = p.created[container]
	delete(p.created, container)
	p.started[done.Of] = true
	p.add(done)
}

func (p *podStart) create(name, id string, done StartCall) {
	if p.started[name] || len(p.Calls) >= maxStartCalls {
		return // a restart, or over the bound
	}
	if id != "" {
		p.created[id] = name
	}
	done.Of = name
	p.add(done)
}

func (p *podStart) add(done StartCall) {
	if len(p.Calls) < maxStartCalls {
		p.Calls = append(p.Calls, done)
	}
}
