package handler

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
)

// UnknownError returns the error of a request for a handler that is not in the table. It is of the
// class ErrInvalidArgument, shorter than 1 KiB, and contains the handlers that accept pods, the
// nearest one and what to do.
func (t *Table[B]) UnknownError(name string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "unknown runtime handler %q; ", printable.Clip(name, maxNameLength))
	names := t.accepting()
	if near, ok := Suggest(name, names); ok {
		fmt.Fprintf(&b, "did you mean %q? ", near)
	}
	fmt.Fprintf(&b, "handlers that accept pods here: %s. Correct the RuntimeClass's handler", t.list(names))
	if label.MatchString(name) && len(name) <= maxNameLength {
		fmt.Fprintf(&b, ", or configure [runtimes.%s]", name)
	}
	b.WriteString(` and try "berth check"`)
	return fmt.Errorf("%s: %w", b.String(), errdefs.ErrInvalidArgument)
}
