package network

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
)

// runError is the failure of one run of a plugin.
type runError struct {
	// Plugin is the path of the executable.
	Plugin string
	// Code, Msg and Details are the plugin's own error result, if it printed one.
	// https://www.cni.dev/docs/spec/#error
	Code         uint
	Msg, Details string
	// Stderr is the end of the plugin's stderr.
	Stderr string
	// Cause is the exit status or the reason of the failure.
	Cause error
}

func (e *runError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "CNI plugin %s: %v", e.Plugin, e.Cause)
	for _, part := range []string{e.Msg, e.Details, e.Stderr} {
		if part = strings.TrimSpace(part); part != "" {
			b.WriteString(": ")
			b.WriteString(cut(part, 250))
		}
	}
	if e.Code != 0 {
		fmt.Fprintf(&b, " (CNI error code %d)", e.Code)
	}
	return b.String()
}

// Unwrap returns the error class and the cause.
func (e *runError) Unwrap() []error {
	switch e.Code {
	case types.ErrTryAgainLater, types.ErrPluginNotAvailable, types.ErrLimitedConnectivity:
		return []error{errdefs.ErrUnavailable, e.Cause}
	}
	return []error{errdefs.ErrInternal, e.Cause}
}

// maxText keeps messages below the 1 KiB limit of an event or a status, with room for the text that
// callers add.
const maxText = 900

// bounded is an error with a cut text.
type bounded struct {
	error
	text string
}

func (e bounded) Error() string { return e.text }
func (e bounded) Unwrap() error { return e.error }

// bound cuts the text of an error and keeps its chain.
func bound(err error) error {
	if err == nil || len(err.Error()) <= maxText {
		return err
	}
	return bounded{err, cut(err.Error(), maxText)}
}

// cut shortens text to at most n bytes, and does not split a rune.
func cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const mark = "…"
	n -= len(mark)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + mark
}
