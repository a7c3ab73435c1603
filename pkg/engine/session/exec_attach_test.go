package session

import (
	"context"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

func TestFirstSize(t *testing.T) {
	type sizes []remotecommand.TerminalSize
	for name, test := range map[string]struct {
		said sizes
		gone bool
		want specs.Box // zero if the result is nil
	}{
		"a size at once":                   {said: sizes{{Width: 80, Height: 24}, {Width: 100, Height: 50}}, want: specs.Box{Width: 80, Height: 24}},
		"incomplete sizes first":           {said: sizes{{}, {Width: 80}, {Width: 100, Height: 50}}, want: specs.Box{Width: 100, Height: 50}},
		"no size":                          {},
		"an incomplete size, then the end": {said: sizes{{}}, gone: true},
	} {
		ch := make(chan remotecommand.TerminalSize, len(test.said))
		for _, s := range test.said {
			ch <- s
		}
		if test.gone {
			close(ch)
		}
		got := firstSize(t.Context(), ch)
		if (got == nil) != (test.want == specs.Box{}) || got != nil && *got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
	over, end := context.WithCancel(t.Context())
	end()
	if got := firstSize(over, make(chan remotecommand.TerminalSize)); got != nil {
		t.Errorf("with an ended context: %v", got)
	}
}
