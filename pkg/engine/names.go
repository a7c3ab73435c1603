package engine

import (
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// names keeps the promise of the CRI that (name, namespace, uid, attempt) of a
// sandbox, and (name, attempt) of a container in it, exist once.
type names struct {
	mu    sync.Mutex
	owner map[string]string // name to id
}

func newNames() *names { return &names{owner: map[string]string{}} }

// takenError is a name that another object has.
type takenError struct{ name, owner string }

func (e *takenError) Error() string { return fmt.Sprintf("the name %q belongs to %s", e.name, e.owner) }
func (*takenError) Unwrap() error   { return errdefs.ErrAlreadyExists }

// taken tells who has asked for a name that another has what to do about it.
func (o *objects) taken(err error) error {
	var t *takenError
	if !errors.As(err, &t) {
		return err
	}
	const next = "or retry with the next attempt"
	if _, missing := o.sandbox(t.owner); missing == nil {
		return fmt.Errorf("%w, which is a pod sandbox: remove that (crictl rmp -f %s), %s", err, t.owner, next)
	}
	if _, missing := o.container(t.owner); missing == nil {
		return fmt.Errorf("%w, which is a container: remove that (crictl rm -f %s), %s", err, t.owner, next)
	}
	return fmt.Errorf("%w, which another call is making: wait until that ends, %s", err, next)
}

// reserve gives name to id, or says who has it.
func (n *names) reserve(name, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if has, ok := n.owner[name]; ok && has != id {
		return &takenError{name, has}
	}
	n.owner[name] = id
	return nil
}

// release frees name if id has it.
func (n *names) release(name, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owner[name] == id {
		delete(n.owner, name)
	}
}

func sandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

func containerName(sandbox string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("%s/%s_%d", sandbox, m.GetName(), m.GetAttempt())
}
