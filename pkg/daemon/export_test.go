package daemon

import "github.com/berth-cri/berth/pkg/lifecycle"

// Lifecycle returns the manager of the handlers, or nil before Start has created it.
func (d *Daemon) Lifecycle() *lifecycle.Manager {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.handlers
}
