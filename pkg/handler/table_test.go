package handler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

func routes(names ...string) []Route[string] {
	var rs []Route[string]
	for _, n := range names {
		rs = append(rs, Route[string]{Backend: "runs " + n, Definition: &Definition{Name: n}, State: State{Phase: Ready}})
	}
	return rs
}

func table(t testing.TB, defaultName string, names ...string) *Table[string] {
	t.Helper()
	return test.Value(NewTable(7, defaultName, routes(names...)))(t)
}

func TestLookup(t *testing.T) {
	tab := table(t, "crun", "runc", "crun")
	for name, want := range map[string]string{"runc": "runs runc", "crun": "runs crun", "": "runs crun"} {
		r, ok := tab.Lookup(name)
		if !ok || r.Backend != want {
			t.Errorf("Lookup(%q) = %+v, %v", name, r, ok)
		}
	}
	if r, ok := tab.Lookup("kata"); ok || r != nil {
		t.Errorf("Lookup of an unknown handler = %+v, %v", r, ok)
	}
	byDefault, _ := tab.Lookup("")
	byName, _ := tab.Lookup("crun")
	if byDefault != byName {
		t.Error("the default handler has two routes")
	}
}

func TestTableListsByName(t *testing.T) {
	tab := table(t, "b", "c", "a", "b")
	test.EqualLists(t, "Names()", tab.Names(), []string{"a", "b", "c"})
	var names []string
	for _, r := range tab.Routes() {
		names = append(names, r.Definition.Name)
	}
	test.EqualLists(t, "Routes()", names, []string{"a", "b", "c"})
	if tab.Default() != "b" || tab.Generation() != 7 {
		t.Errorf("Default() = %q, Generation() = %d", tab.Default(), tab.Generation())
	}
}

func TestTableDoesNotChange(t *testing.T) {
	input := routes("a", "b")
	tab := test.Value(NewTable(1, "a", input))(t)
	input[0].Backend = "changed"
	tab.Names()[0] = "changed"
	tab.Routes()[0] = nil
	r, _ := tab.Lookup("a")
	if r.Backend != "runs a" || tab.Names()[0] != "a" || tab.Routes()[0] == nil {
		t.Error("a caller changed the table")
	}
}

func TestRouteKeepsItsGeneration(t *testing.T) {
	rs := routes("old", "new")
	rs[0].Generation = 3
	tab := test.Value(NewTable(9, "old", rs))(t)
	old, _ := tab.Lookup("old")
	fresh, _ := tab.Lookup("new")
	if old.Generation != 3 || fresh.Generation != 9 {
		t.Errorf("generations are %d and %d", old.Generation, fresh.Generation)
	}
}

func TestNewTableRefuses(t *testing.T) {
	for _, c := range []struct {
		what, defaultName string
		routes            []Route[string]
		want              string
	}{
		{"a duplicate", "a", routes("a", "a"), `duplicate handler "a"`},
		{"a bad name", "a", routes("a", "B_"), `"B_" is not a DNS-1123 label`},
		{"no definition", "a", append(routes("a"), Route[string]{}), "no definition"},
		{"an unknown default", "b", routes("a"), `default handler "b" is not in the table`},
		{"no default", "", routes("a"), "default handler"},
		{"no routes", "", nil, "default handler"},
	} {
		tab, err := NewTable(1, c.defaultName, c.routes)
		if err == nil || tab != nil || !strings.Contains(err.Error(), c.want) || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestUnknownError(t *testing.T) {
	tab := table(t, "runc", "runc", "crun", "kata")
	for _, name := range []string{"runsc", "runcs", "cru"} {
		if text := tab.UnknownError(name).Error(); strings.Contains(text, "did you mean") {
			t.Errorf("a handler with weaker isolation is suggested: %s", text)
		}
	}
	text := tab.UnknownError("katta").Error()
	for _, want := range []string{`"katta"`, `did you mean "kata"?`, "crun, kata, runc (default)", "[runtimes.katta]", "berth check"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	if text := tab.UnknownError("Docker_").Error(); strings.Contains(text, "did you mean") || strings.Contains(text, "[runtimes.") {
		t.Errorf("%q gives bad advice", text)
	}
}

func TestUnknownErrorStaysShort(t *testing.T) {
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("%s-%03d", strings.Repeat("handler", 8), i))
	}
	tab := table(t, names[0], names...)
	for _, name := range []string{"x", names[1] + "x", strings.Repeat("\x00", 1<<16), strings.Repeat("x", 63)} {
		err := tab.UnknownError(name)
		if len(err.Error()) >= 1024 || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%d bytes: %v", len(err.Error()), err)
		}
		if !strings.Contains(err.Error(), "more") {
			t.Errorf("%v does not mention more handlers", err)
		}
	}
}

func TestRegistry(t *testing.T) {
	first, second := table(t, "a", "a"), table(t, "b", "b")
	r := NewRegistry(first)
	held := r.Current()
	if previous := r.Swap(second); previous != first || r.Current() != second {
		t.Fatal("Swap did not swap")
	}
	if _, ok := held.Lookup("a"); !ok {
		t.Error("Swap changed the table that a call uses")
	}
}

func TestRegistryUnderReload(t *testing.T) {
	tables := []*Table[string]{table(t, "a", "a"), table(t, "b", "b")}
	r := NewRegistry(tables[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 10000 {
			r.Swap(tables[i%2])
		}
	}()
	for range 10000 {
		tab := r.Current()
		if got, ok := tab.Lookup(""); !ok || got.Definition.Name != tab.Default() {
			t.Fatal("a reader got an inconsistent table")
		}
	}
	<-done
}

func TestStateAcceptsPods(t *testing.T) {
	for phase, want := range map[Phase]bool{Ready: true, NotReady: false, Cordoned: false, Draining: false} {
		test.Equal(t, fmt.Sprintf("%s accepts pods", phase), (State{Phase: phase}).AcceptsPods(), want)
	}
}

func hundred() []string {
	var names []string
	for i := range 100 {
		names = append(names, fmt.Sprintf("handler-%03d", i))
	}
	return names
}

func TestLookupDoesNotAllocate(t *testing.T) {
	names := hundred()
	r := NewRegistry(table(t, names[0], names...))
	if n := testing.AllocsPerRun(1000, func() { r.Current().Lookup("handler-050") }); n != 0 {
		t.Errorf("a lookup allocates %v times", n)
	}
}
