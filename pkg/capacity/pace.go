package capacity

import (
	"sync"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

const (
	// So many changes of a node are made at once, and then one in each step: somebody else who
	// sets other figures would be answered hundreds of times in a second.
	changesAtOnce = 50
	changeStep    = time.Second
)

// pace bounds changes of each node. Its methods may be called concurrently.
type pace struct {
	mu    sync.Mutex
	nodes map[string]flowcontrol.RateLimiter
}

// takes says whether a node may be changed now.
func (p *pace) takes(node string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	of, there := p.nodes[node]
	if !there {
		of = flowcontrol.NewTokenBucketRateLimiter(float32(1/changeStep.Seconds()), changesAtOnce)
		p.nodes[node] = of
	}
	return of.TryAccept()
}

// forget is for nodes that are gone.
func (p *pace) forget(node string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nodes, node)
}
