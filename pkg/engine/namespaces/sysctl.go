package namespaces

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/sysctl"
)

// write is one write below /proc/sys.
type write struct{ name, key, value string }

// sysctls checks the request's sysctls and orders them by path.
func (r *Request) sysctls() ([]write, error) {
	made := map[sysctl.Namespace]bool{sysctl.Network: r.Net, sysctl.IPC: r.IPC, sysctl.UTS: r.UTS}
	writes := make([]write, 0, len(r.Sysctls))
	for name, value := range r.Sysctls {
		if why := sysctl.Refusal(name, func(ns sysctl.Namespace) bool { return made[ns] }); why != "" {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q %s", name, why))
		}
		w := write{name, sysctl.Key(name), value}
		var err error
		if w.value, err = r.User.outside(w.key, value); err != nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("sysctl %.100q: %v", name, err))
		}
		writes = append(writes, w)
	}
	slices.SortFunc(writes, func(a, b write) int { return strings.Compare(a.key, b.key) })
	return writes, nil
}

// do sets the value in the namespaces of the calling thread: the kernel
// looks at the opener's.
func (w write) do() error {
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
