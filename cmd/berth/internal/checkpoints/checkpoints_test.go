package checkpoints

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExpired(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(name string, hours int) listedCheckpoint {
		return listedCheckpoint{Namespace: "n", Pod: name, Directory: name + strings.Repeat("'", max(hours, 0)), Created: now.Add(-time.Duration(hours) * time.Hour)}
	}
	some := []listedCheckpoint{at("a", 1), at("b", 2), at("a", 3), at("a", 5)}
	named := slices.Clone(some)
	named[0].Name = "shop/a"
	elsewhere := at("a", 4)
	elsewhere.Namespace, elsewhere.Directory = "m", "other"
	for name, c := range map[string]struct {
		all       []listedCheckpoint
		keep      int
		olderThan time.Duration
		want      string
	}{
		"no bounds":                        {some, 0, 0, ""},
		"no checkpoints":                   {nil, 1, time.Hour, ""},
		"two of each":                      {some, 2, 0, "a'''''"},
		"one of each":                      {some, 1, 0, "a''''' a'''"},
		"another namespace is another pod": {append([]listedCheckpoint{elsewhere}, some...), 3, 0, ""},
		"by age":                           {some, 0, 3 * time.Hour, "a''''' a'''"},
		"all are too old":                  {some, 0, time.Hour, "a''''' a''' b'' a'"},
		"number and age":                   {some, 2, 2 * time.Hour, "a''''' a''' b''"},
		"neither too many nor too old":     {some, 5, 10 * time.Hour, ""},
		"a name does not count":            {named, 2, 0, ""},
		"a name never expires":             {named, 1, time.Minute, "a''''' a''' b''"},
		"one from the future":              {[]listedCheckpoint{at("x", -1), at("x", 0)}, 1, time.Hour, "x"},
	} {
		before := slices.Clone(c.all)
		var got []string
		for _, l := range expired(c.all, c.keep, c.olderThan, now) {
			got = append(got, l.Directory)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if !slices.EqualFunc(c.all, before, func(a, b listedCheckpoint) bool { return a.Directory == b.Directory }) {
			t.Errorf("%s: expired changed its argument", name)
		}
	}
}
