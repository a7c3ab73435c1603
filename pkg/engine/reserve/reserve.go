// Package reserve keeps what must not be given out twice: names of sandboxes and
// containers, and the categories of SELinux labels. It remembers nothing over a
// restart; who recovers reserves again. All methods may be called at the same time.
package reserve

import (
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names keeps the promise of the CRI that (name, namespace, uid, attempt) of a
// sandbox, and (name, attempt) of a container in it, exist once.
type Names struct {
	mu    sync.Mutex
	owner map[string]string // name to id
}

// NewNames has none reserved.
func NewNames() *Names { return &Names{owner: map[string]string{}} }

// TakenError is a name that another object has.
type TakenError struct{ Name, Owner string }

func (e *TakenError) Error() string { return fmt.Sprintf("the name %q belongs to %s", e.Name, e.Owner) }

// Unwrap tells the class.
func (*TakenError) Unwrap() error { return errdefs.ErrAlreadyExists }

// Reserve gives name to id, or says who has it.
func (n *Names) Reserve(name, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if has, ok := n.owner[name]; ok && has != id {
		return &TakenError{name, has}
	}
	n.owner[name] = id
	return nil
}

// Release frees name if id has it.
func (n *Names) Release(name, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owner[name] == id {
		delete(n.owner, name)
	}
}

// SandboxName is the name of a sandbox.
func SandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// ContainerName is the name of a container in a sandbox, which is told by its id.
func ContainerName(sandbox string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("%s/%s_%d", sandbox, m.GetName(), m.GetAttempt())
}

// Labels keeps SELinux categories from being given out a second time while a pod
// or container has them. The library knows only whether categories are taken; here
// it is counted by how many, because containers mostly have those of their sandbox
// and end before it.
type Labels struct {
	mu    sync.Mutex
	users map[string]int // guarded by mu; by level
}

// NewLabels has none taken.
func NewLabels() *Labels { return &Labels{users: map[string]int{}} }

// Hold takes the level of a process label. A label without categories is nobody's.
func (l *Labels) Hold(label string) {
	level := categories(label)
	if level == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users[level]++
	// That it is taken already is fine: whoever chose it took it.
	_ = selinux.ReserveLabelV2(label)
}

// Release ends a hold. The last one frees the level.
func (l *Labels) Release(label string) {
	level := categories(label)
	if level == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.users[level]--; l.users[level] > 0 {
		return
	}
	delete(l.users, level)
	selinux.ReleaseLabel(label)
}

// categories returns the level of user:role:type:level, if it has categories.
func categories(label string) string {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) < 4 || !strings.Contains(parts[3], ":c") {
		return ""
	}
	return parts[3]
}
