package router

import "slices"

// Reconcile makes the owners match a backend's inventory, for a backend in which other clients
// create and remove pods, too. An object that another backend also has is an error of the class
// ErrAlreadyExists, and its owner stays.
func (p *Pods) Reconcile(b Backend) error { return p.owners.reconcile(b) }

// Abandon removes a backend and the owners of all its objects.
func (p *Pods) Abandon(b Backend) {
	p.owners.mu.Lock()
	p.owners.serve(p.owners.beside(b))
	p.owners.mu.Unlock()
	for _, id := range p.owners.of(b) {
		p.owners.dropSandbox(id)
	}
}

// reconcile takes the inventory with mu held, as refresh does.
func (o *owners) reconcile(b Backend) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	inventory := b.Inventory()
	has, containers := map[string]bool{}, map[string]bool{}
	for _, s := range inventory {
		has[s.Sandbox] = true
		for _, c := range s.Containers {
			containers[c] = true
		}
	}
	for id := range has {
		if err := foreign("pod sandbox", o.sandboxes.get(id), b); err != nil {
			return err
		}
	}
	for id := range containers {
		if err := foreign("container", o.containers.get(id), b); err != nil {
			return err
		}
	}
	o.add(b, inventory)
	for _, pods := range o.pods {
		for id, s := range pods {
			if s.Backend.ID() != b.ID() {
				continue
			}
			if !has[id] {
				o.drop(id)
				continue
			}
			for _, c := range slices.Clone(o.contents[id]) {
				if !containers[c] {
					o.dropOne(c)
				}
			}
		}
	}
	return nil
}
