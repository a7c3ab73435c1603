package cgroups

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

func TestBelongs(t *testing.T) {
	all := map[int]procfs.Stat{
		10: {Parent: 1, Group: 10, Session: 10},                                        // the exec's leader
		11: {Parent: 10, Group: 10, Session: 10},                                       // the leader's child
		12: {Parent: 11, Group: 12, Session: 12},                                       // a grandchild that left the session
		13: {Parent: 1, Group: 10, Session: 10},                                        // an orphan of the group
		14: {Parent: 1, Group: 9, Session: 9},                                          // an orphan of the exec's session, which the runtime made
		15: {Parent: 1, Group: 15, Session: 15},                                        // an unrelated process
		16: {Parent: 17, Group: 1, Session: 1}, 17: {Parent: 16, Group: 1, Session: 1}, // a loop of parents, which must not hang
	}
	for pid, want := range map[int]bool{11: true, 12: true, 13: true, 14: true, 15: false, 16: false} {
		test.Equal(t, fmt.Sprintf("process %d belongs to the exec", pid), belongs(pid, 10, 9, all), want)
	}
	if belongs(14, 10, 0, all) {
		t.Error("process 14 belongs to an exec without a session of its own")
	}
	if belongs(15, 1, 0, all) || belongs(11, 0, 0, all) {
		t.Error("a process belongs to an exec whose leader is pid 1 or 0")
	}
}
