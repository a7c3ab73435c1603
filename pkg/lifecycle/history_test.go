package lifecycle

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

// told returns the changes of a handler, each as a line without its time.
func (b *bed) told(name string) []string {
	b.t.Helper()
	all, err := b.m.Changes(name)
	b.must(Outcome{}, err)
	var lines []string
	for _, c := range all {
		if c.At.IsZero() {
			b.t.Errorf("%+v has no time", c)
		}
		lines = append(lines, strings.Join([]string{c.What, c.From, c.To, c.By, c.Reason}, "|"))
	}
	return lines
}

// The history keeps each change with the old and new value, its author and its reason, also
// across restarts.
func TestEveryChangeIsKept(t *testing.T) {
	b := newBed(t, trying(10))
	ctx := WithUser(t.Context(), "uid 7")
	b.must(Outcome{}, b.m.Cordon(ctx, "runc", "new  kernel", "uid 7"))
	b.must(Outcome{}, b.m.Drain(ctx, "runc", "", "uid 0"))
	b.must(Outcome{}, b.m.Uncordon(ctx, "runc"))
	b.must(Outcome{}, b.m.Uncordon(ctx, "runc")) // changes nothing
	b.must(Outcome{}, b.m.Abort(ctx, "runc", "too slow"))
	b.set(func() { b.failures["/old"] = errBroke })
	_, _ = b.m.Probe(ctx, "runc", 0)
	b.wait("runc is not ready", func() bool { return b.phase("runc") == "not-ready" })
	next := conf("runc", "/newer")
	b.set(func() { b.next = next })
	b.must(Outcome{}, test.Err(b.m.Reload(ctx, TriggerAdmin)))
	want := []string{
		"cordon|ready|cordoned|uid 7|new kernel",
		"drain|cordoned|draining|uid 0|set by an operator",
		"uncordon|draining|ready|uid 7|",
		"rollout|running|aborted|uid 7|/new: too slow",
		"state|ready|not-ready|berth|it broke",
		"state|not-ready|ready|berth|",
		"changed|" + brief(trying(10).Runtimes[0]) + "|" + brief(next.Runtimes[0]) + "|uid 7|",
	}
	if got := b.told("runc"); !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
	b.set(func() { b.loadErr = errBroke })
	test.Fails(t, test.Err(b.m.Reload(t.Context(), TriggerSignal)), "the reload succeeded")
	b.close()
	b.open(next)
	all := b.told("")
	if !slices.Equal(b.told("runc"), want) || all[0] != "start|||berth|" || all[len(all)-1] != all[0] || !strings.HasPrefix(all[len(all)-2], "reload|generation ") ||
		!strings.HasSuffix(all[len(all)-2], "|rejected|signal|it broke") {
		t.Errorf("after a restart: %q", all)
	}
	test.Fails(t, test.Err(b.m.Changes("nobody")), "a handler that does not exist has a history")
}

func TestHistoryIsBounded(t *testing.T) {
	dir := t.TempDir()
	h := test.Value(readHistory(dir))(t)
	for i := range maxChanges + 3 {
		h.add(Change{What: fmt.Sprint(i), Reason: strings.Repeat("ä", maxChangeReason)})
	}
	all := h.last("")
	if len(all) != maxChanges || all[0].What != "3" || len(all[0].Reason) > maxChangeReason+len("…") || !strings.HasSuffix(all[0].Reason, "ä…") {
		t.Errorf("%d changes are kept, the first is %+v", len(all), all[0])
	}
	for _, text := range []string{"{", `{"format": 2, "changes": [{"what": "reload"}]}`} {
		test.Must(t, os.WriteFile(filepath.Join(dir, "history.json"), []byte(text), 0o600))
		if h, err := readHistory(dir); err == nil || len(h.last("")) > 0 {
			t.Errorf("%s is read as %v, %v", text, h.last(""), err)
		}
	}
}
