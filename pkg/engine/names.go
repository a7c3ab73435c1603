package engine

import (
	"fmt"
	"strings"
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

// reserve gives name to id, or says who has it.
func (n *names) reserve(name, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if has, ok := n.owner[name]; ok && has != id {
		return fmt.Errorf("name %q is reserved for %s: wait until that call ends, or remove it and retry with the next attempt: %w",
			strings.TrimLeft(name, "/"), has, errdefs.ErrAlreadyExists)
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
