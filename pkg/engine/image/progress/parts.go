package progress

import (
	"context"
	"sync"

	"github.com/berth-cri/berth/pkg/step"
)

// Step is a step that several do at the same time: it lasts as long as anybody does it.
type Step struct {
	Name string

	mu   sync.Mutex
	open int
	end  func(error)
}

// Enter begins the step for one of them; what it returns ends it.
func (p *Step) Enter(ctx context.Context) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open++; p.open == 1 {
		_, p.end = step.Begin(ctx, p.Name)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.open--; p.open == 0 {
			p.end(nil)
		}
	}
}
