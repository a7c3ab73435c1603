package layerproc

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
)

const (
	// maxError bounds the text of an error, which has names of the layer in it.
	maxError = 4 << 10
	// maxAnswer bounds an answer, in which characters of a text may be escaped.
	maxAnswer = 8 * maxError
)

// answer is what a child sends for a layer.
type answer struct {
	Result

	More bool // the layer is not at its end
	Last bool // the child exits
	// Error is the text of an error, and the rest what callers ask of it.
	Error                  string
	Errno                  syscall.Errno
	Below, Beyond, Invalid bool
}

func (a *answer) set(err error) {
	if err == nil {
		return
	}
	a.Error = fmt.Sprintf("%.*s", maxError, err.Error())
	a.Errno, _ = errors.AsType[syscall.Errno](err)
	a.Below, a.Beyond = errors.Is(err, ErrBelow), bounds.IsBeyond(err)
	a.Invalid = errdefs.IsInvalidArgument(err) || errors.Is(err, tar.ErrHeader)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		a.Error, a.Invalid = "layer ends too early: "+a.Error, true
	}
}

func (a *answer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.Below:
		return ErrBelow
	case a.Beyond:
		return bounds.Beyond("%s", a.Error)
	case a.Invalid:
		return fmt.Errorf("%s: %w", a.Error, errdefs.ErrInvalidArgument)
	case a.Errno != 0:
		return &kernelError{a.Error, a.Errno}
	}
	return errors.New(a.Error)
}

// kernelError is an error of the kernel whose text has it already.
type kernelError struct {
	text  string
	errno syscall.Errno
}

func (e *kernelError) Error() string { return e.text }
func (e *kernelError) Unwrap() error { return e.errno }
