package reserve

import (
	"strings"
	"sync"

	"github.com/opencontainers/selinux/go-selinux"
)

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
