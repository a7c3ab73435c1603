package pin

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Namespace is a type of namespace that sysctls can belong to.
type Namespace string

// The namespaces that have sysctls of their own. NoNamespace is for all others,
// which would change the host.
const (
	NetNamespace Namespace = "net"
	IPCNamespace Namespace = "ipc"
	UTSNamespace Namespace = "uts"
	NoNamespace  Namespace = ""
)

// NamespaceOf says which namespace a sysctl belongs to, by dotted or slashed
// name. The rule is the kernel's: all of net, the System V and POSIX queue
// limits, and the NIS domain. kernel.hostname has a field of its own in a
// Request, and so counts as none.
func NamespaceOf(name string) Namespace {
	key := sysctlKey(name)
	switch {
	case strings.HasPrefix(key, "net/"):
		return NetNamespace
	case strings.HasPrefix(key, "fs/mqueue/"), slices.Contains(ipcSysctls, key):
		return IPCNamespace
	case key == "kernel/domainname":
		return UTSNamespace
	default:
		return NoNamespace
	}
}

var ipcSysctls = []string{
	"kernel/auto_msgmni",
	"kernel/msg_next_id",
	"kernel/msgmax",
	"kernel/msgmnb",
	"kernel/msgmni",
	"kernel/sem",
	"kernel/sem_next_id",
	"kernel/shm_next_id",
	"kernel/shm_rmid_forced",
	"kernel/shmall",
	"kernel/shmmax",
	"kernel/shmmni",
}

// sysctlKey turns a name into a path below /proc/sys. The first separator tells
// which of the two is one; the other may then stand inside an element, as the
// name of an interface (net/ipv4/conf/eth0.100/forwarding), as sysctl(8) has it.
func sysctlKey(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	return strings.Map(func(c rune) rune {
		switch c {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return c
	}, name)
}

// sysctl is one write below /proc/sys.
type sysctl struct{ name, key, value string }

// sysctls checks the request's sysctls and orders them by name.
func (r *Request) sysctls() ([]sysctl, error) {
	made := map[Namespace]bool{NetNamespace: r.Net, IPCNamespace: r.IPC, UTSNamespace: r.UTS}
	writes := make([]sysctl, 0, len(r.Sysctls))
	for name, value := range r.Sysctls {
		w := sysctl{name, sysctlKey(name), value}
		if !w.clean() {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q is not a name", name))
		}
		var err error
		if w.value, err = r.User.outside(w.key, value); err != nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q: %v", name, err))
		}
		switch ns := NamespaceOf(name); {
		case ns == NoNamespace:
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
				"sysctl %.100q belongs to the whole host: set it on the node, a pod can only have sysctls of its net, ipc and uts namespaces", name))
		case !made[ns]:
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
				"sysctl %.100q needs a separate %s namespace, but the pod shares the host's", name, ns))
		}
		writes = append(writes, w)
	}
	slices.SortFunc(writes, func(a, b sysctl) int { return strings.Compare(a.key, b.key) })
	return writes, nil
}

// clean refuses keys that would leave their place below /proc/sys.
func (w sysctl) clean() bool {
	if strings.ContainsRune(w.key, 0) {
		return false
	}
	return !slices.ContainsFunc(strings.Split(w.key, "/"), func(element string) bool {
		return element == "" || element == "." || element == ".."
	})
}

// write sets the value in the namespaces of the calling thread: the kernel
// looks at the opener's.
func (w sysctl) write() error {
	f, err := os.OpenFile("/proc/sys/"+w.key, os.O_WRONLY, 0)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"sysctl %.100q does not exist in a namespace of this kernel", w.name))
	case err != nil:
		return fmt.Errorf("sysctl %.100q: %w", w.name, err)
	}
	_, err = f.WriteString(w.value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(
			"sysctl %.100q does not accept the value %.100q", w.name, w.value)), err)
	}
	return nil
}
