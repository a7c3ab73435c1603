package capability

import "testing"

func TestWhatNobodySaidIsUnknown(t *testing.T) {
	var table Table
	if got := table.Of(Seccomp); got != (Known{Answer: Unknown}) {
		t.Errorf("an empty table says %+v", got)
	}
	table.Set(Seccomp, No, Probed, "built without it")
	if got := table.Of(Seccomp); got != (Known{No, Probed, "built without it"}) {
		t.Errorf("got %+v", got)
	}
	if got := table.Of(AppArmor).Answer; got != Unknown {
		t.Errorf("got %s for what was not set", got)
	}
}

func TestValidate(t *testing.T) {
	for want, table := range map[string]Table{
		"": {Isolation: VM, Capabilities: map[Name]Known{Exec: {Answer: Yes, Source: Ran}, "of-next-year": {Answer: Unknown}}},
		`isolation "strong" is none of shared-kernel, user-space-kernel and vm`: {Isolation: "strong"},
		`capabilities.exec.answer "maybe" is none of yes, no and unknown`:       {Capabilities: map[Name]Known{Exec: {Answer: "maybe"}}},
		`capabilities.exec.answer "" is none of yes, no and unknown`:            {Capabilities: map[Name]Known{Exec: {}}},
		`capabilities.exec.source "rumour" is none of declared, probed and ran`: {Capabilities: map[Name]Known{Exec: {Answer: Yes, Source: "rumour"}}},
	} {
		got := ""
		if err := table.Validate(); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
