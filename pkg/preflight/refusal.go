package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
)

// Refusal is something that was asked for and that a handler does not have.
type Refusal struct {
	// Feature is what the user called it: hostNetwork, a user namespace.
	Feature string
	// Why is the reason, about the handler.
	Why string
	// Instead is what else the user can do than to use another handler.
	Instead string
	// word, if any, is what the kubelet looks for at the beginning of the text.
	word error
}

// Refuse checks a handler, and says of what it lacks which of the others have it:
// those that pass the same check, and isolate pods no less. others is called only then. The error is of the
// class FailedPrecondition and shorter than 1 KiB.
func Refuse(h Handler, others func() []Handler, check func(Handler) *Refusal) error {
	lack := check(h)
	if lack == nil {
		return nil
	}
	var can []string
	for _, o := range others() {
		if o.Name != h.Name && o.Runtime != nil && (o.ownKernel() || !h.ownKernel()) && check(o) == nil {
			can = append(can, o.Name)
		}
	}
	slices.Sort(can)
	return lack.refusal(h, can)
}

// maxNamed is how many handlers an error names.
const maxNamed = 6

func (l *Refusal) refusal(h Handler, can []string) error {
	advice := "no ready handler of this node supports it: " + l.Instead
	if h.ownKernel() {
		advice = "no ready handler of this node with a kernel for each pod supports it: " + l.Instead
	}
	if len(can) > 0 {
		more := ""
		if n := len(can) - maxNamed; n > 0 {
			can, more = can[:maxNamed], fmt.Sprintf(" and %d more", n)
		}
		advice = fmt.Sprintf("use a handler that supports it (%s%s), or %s", strings.Join(can, ", "), more, l.Instead)
	}
	// The handler is named here, because nothing is put before a word of the kubelet's.
	err := fmt.Errorf("handler %q does not support %s: %s; %s: %w", h.Name, l.Feature, printable.Clip(l.Why, 240), advice, errdefs.ErrFailedPrecondition)
	if l.word != nil {
		return fmt.Errorf("%w: %w", l.word, err)
	}
	return err
}
