package engine

import (
	"strings"
	"testing"

	"github.com/berth-cri/berth/pkg/engine/capabilities"
	"github.com/berth-cri/berth/pkg/engine/container"
	"github.com/berth-cri/berth/pkg/engine/hooks"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
)

func TestComplete(t *testing.T) {
	whole := &container.Resizing{Objects: pod.NewIndex(), Resources: &container.Resources{}, Hooks: &hooks.Hooks{}}
	if err := complete(whole, reserve.NewNames()); err != nil {
		t.Errorf("only plugins are missing: %v", err)
	}
	whole.Hooks = nil
	err := complete(whole, &capabilities.Checker{})
	if err == nil {
		t.Fatal("nobody misses hooks")
	}
	for _, want := range []string{"resizing was put together without its hooks", "abilities was put together without its prober", "without its accepting"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}
