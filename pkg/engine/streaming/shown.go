package streaming

import (
	"errors"

	utilexec "k8s.io/utils/exec"

	"github.com/berth-cri/berth/pkg/printable"
)

// shownError has a text that prints: what a runtime has said goes to the terminal
// of who opened the session.
type shownError struct {
	text string
	error
}

func (e shownError) Error() string { return e.text }

func (e shownError) Unwrap() error { return e.error }

// shown is err as a client sees it. cri-streaming looks for an exit code in the
// error itself, so one that has a code stays what it is.
func shown(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[utilexec.ExitError](err); ok {
		return err
	}
	if text := printable.Line(printable.Error(err)); text != err.Error() {
		return shownError{text, err}
	}
	return err
}
