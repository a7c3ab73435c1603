package capability

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestWhatNobodySaidIsUnknown(t *testing.T) {
	var table Table
	if got := table.Of(Seccomp); got != (Known{Answer: Unknown}) {
		t.Errorf("an empty table has %+v", got)
	}
	table.Set(Seccomp, No, Probed, "built without it")
	if got := table.Of(Seccomp); got != (Known{No, Probed, "built without it"}) {
		t.Errorf("got %+v", got)
	}
	if got := table.Of(AppArmor).Answer; got != Unknown {
		t.Errorf("got %s for a name that was not set", got)
	}
}

func TestValidate(t *testing.T) {
	for want, table := range map[string]Table{
		"": {Isolation: VM, Capabilities: map[Name]Known{Exec: {Answer: Yes, Source: Ran}, "of-next-year": {Answer: Unknown}}},
		`isolation "strong" must be one of shared-kernel, user-space-kernel and vm`: {Isolation: "strong"},
		`isolationSource "rumour" must be one of declared, probed and ran`:          {Isolation: VM, IsolationSource: "rumour"},
		`capabilities.exec.answer "maybe" must be one of yes, no and unknown`:       {Capabilities: map[Name]Known{Exec: {Answer: "maybe"}}},
		`capabilities.exec.answer "" must be one of yes, no and unknown`:            {Capabilities: map[Name]Known{Exec: {}}},
		`capabilities.exec.source "rumour" must be one of declared, probed and ran`: {Capabilities: map[Name]Known{Exec: {Answer: Yes, Source: "rumour"}}},
	} {
		got := ""
		if err := table.Validate(); err != nil {
			got = err.Error()
		}
		test.Equal(t, "Validate", got, want)
	}
}

func TestSorted(t *testing.T) {
	var table Table
	if !table.Empty() || len(table.Sorted()) != 0 {
		t.Error("an empty table has entries")
	}
	for _, n := range []Name{"zz", SystemdCgroup, "aa", Privileged} {
		table.Set(n, Yes, Declared, "")
	}
	if got, want := table.Sorted(), []Name{Privileged, SystemdCgroup, "aa", "zz"}; !slices.Equal(got, want) || table.Empty() {
		t.Errorf("got %v, want %v", got, want)
	}
}

// docs/capabilities.md explains exactly the names that exist.
func TestEveryNameIsDocumented(t *testing.T) {
	text := test.Value(os.ReadFile("../../../docs/capabilities.md"))(t)
	var documented []Name
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		first, _, _ := strings.Cut(line[2:], " | ")
		for name := range strings.SplitSeq(first, ", ") {
			documented = append(documented, Name(strings.Trim(name, "`")))
		}
	}
	if want := append([]Name{"isolation"}, Names()...); !slices.Equal(documented, want) {
		t.Errorf("the documented names are\n%v, want\n%v", documented, want)
	}
}
