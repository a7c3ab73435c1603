// Package reserve prevents duplicates of names of sandboxes and containers, and of SELinux
// categories. Nothing is persistent: recovery reserves again. All methods are safe for concurrent
// use.
package reserve

import (
	"fmt"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/selinux/go-selinux"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Names keeps (name, namespace, uid, attempt) of a sandbox, and (name, attempt) of a container in
// it, unique, as the CRI requires.
type Names struct {
	mu    sync.Mutex
	owner map[string]string // name to id
}

// NewNames returns Names without reservations.
func NewNames() *Names { return &Names{owner: map[string]string{}} }

// TakenError is the error for a name of another object.
type TakenError struct{ Name, Owner string }

func (e *TakenError) Error() string { return fmt.Sprintf("the name %q belongs to %s", e.Name, e.Owner) }

// Unwrap returns the class.
func (*TakenError) Unwrap() error { return errdefs.ErrAlreadyExists }

// Reserve reserves name for id, or returns a TakenError with its owner.
func (n *Names) Reserve(name, id string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if has, ok := n.owner[name]; ok && has != id {
		return &TakenError{name, has}
	}
	n.owner[name] = id
	return nil
}

// Release frees name if id owns it.
func (n *Names) Release(name, id string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.owner[name] == id {
		delete(n.owner, name)
	}
}

// SandboxName is the reserved name of a sandbox.
func SandboxName(m *runtimeapi.PodSandboxMetadata) string {
	return fmt.Sprintf("%s_%s_%s_%d", m.GetName(), m.GetNamespace(), m.GetUid(), m.GetAttempt())
}

// ContainerName is the reserved name of a container in a sandbox, which is identified by its id.
func ContainerName(sandbox string, m *runtimeapi.ContainerMetadata) string {
	return fmt.Sprintf("%s/%s_%d", sandbox, m.GetName(), m.GetAttempt())
}

// Labels prevents SELinux categories from being assigned twice while a pod or container uses them.
// The library records only whether categories are taken. Labels counts their users, because
// containers mostly have the categories of their sandbox and exit before it.
type Labels struct {
	mu    sync.Mutex
	users map[string]int // guarded by mu; by level
}

// NewLabels returns Labels without users.
func NewLabels() *Labels { return &Labels{users: map[string]int{}} }

// Hold counts a user of a process label's level. A label without categories is not counted.
func (l *Labels) Hold(label string) {
	level := categories(label)
	if level == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.users[level]++
	// An error means that the code that chose the label has reserved it already.
	_ = selinux.ReserveLabelV2(label)
}

// Release ends a Hold. The last one frees the level.
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
