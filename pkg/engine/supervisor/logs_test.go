package supervisor_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/berth-cri/berth/internal/test"
)

// Several containers write to both streams as fast as they can. No line is lost, doubled or out of
// order, and the log is complete once Wait returns the exit.
func TestLogsUnderLoad(t *testing.T) {
	const lines = 100_000
	forEachRuntime(t, allRuntimes, func(t *testing.T, r ociRuntime) {
		b := newBed(t, r)
		n := 3
		if r.ownKernel {
			n = 1
		}
		var all []*container
		for i := range n {
			all = append(all, b.run(fmt.Sprint("c", i), shell(fmt.Sprintf("seq 1 %d & seq 1 %d >&2; wait", lines, lines))))
		}
		for _, c := range all {
			c.exits(0)
			streams := map[string][]logLine{}
			var last time.Time
			for _, l := range c.lines() {
				if l.at.Before(last) {
					t.Fatalf("the log has a line of %v after one of %v", l.at, last)
				}
				last = l.at
				streams[l.stream] = append(streams[l.stream], l)
			}
			expectSequence(t, lines, streams["stdout"])
			expectSequence(t, lines, streams["stderr"])
			c.mustDelete()
		}
	})
}

// A process outside of the container may hold its output open. Neither Wait nor Delete may then
// wait until the output ends.
func TestNothingWaitsForWhoHoldsTheOutput(t *testing.T) {
	b := newBed(t, findRuntime(t, "runc"))
	c := b.run("c", shell("echo said; sleep 0.5; exit 5"))
	holder := test.Value(os.OpenFile(c.bundle+"/io/stdout", os.O_RDWR, 0))(t)
	defer holder.Close()
	begin := time.Now()
	c.exits(5)
	c.mustDelete()
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Wait and Delete took %v, want at most 20s", took)
	}
	expectContents(t, c.lines(), "said")
}

func expectContents(t testing.TB, lines []logLine, want ...string) {
	t.Helper()
	var got []string
	for _, l := range lines {
		got = append(got, l.content)
	}
	test.EqualLists(t, "lines of the log", got, want)
}
