package handlers

import (
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/probe/capability"
)

func TestTried(t *testing.T) {
	var none, declared, ran capability.Table
	declared.Set(capability.Exec, capability.Yes, capability.Declared, "")
	ran.Set(capability.HostPID, capability.No, capability.Declared, "")
	ran.Set(capability.Exec, capability.Yes, capability.Ran, "")
	for name, c := range map[string]struct {
		table capability.Table
		want  bool
	}{"nothing known": {none, false}, "declared only": {declared, false}, "exec ran": {ran, true}} {
		test.Equal(t, name, tried(c.table), c.want)
	}
}
