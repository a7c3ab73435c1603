package retention

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExpired(t *testing.T) {
	now := time.Date(2026, 11, 25, 12, 0, 0, 0, time.UTC)
	at := func(name string, hours int, size int64) Checkpoint {
		return Checkpoint{Directory: name + strings.Repeat("'", max(hours, 0)), Namespace: "n", Name: name, Created: now.Add(-time.Duration(hours) * time.Hour), Size: size}
	}
	stays := func(c Checkpoint) Checkpoint { c.Stays = true; return c }
	some := []Checkpoint{at("a", 1, 10), at("b", 2, 10), at("a", 3, 10), at("a", 5, 10)}
	elsewhere := at("a", 4, 10)
	elsewhere.Namespace, elsewhere.Directory = "m", "other"
	for name, c := range map[string]struct {
		all      []Checkpoint
		bounds   Bounds
		want     string
		exceeded bool
	}{
		"no bounds":                         {some, Bounds{}, "", false},
		"none":                              {nil, Bounds{Keep: 1, MaxAge: time.Hour, MaxTotalSize: 1}, "", false},
		"two of each":                       {some, Bounds{Keep: 2}, "a''''':keep", true},
		"one of each":                       {some, Bounds{Keep: 1}, "a''''':keep a''':keep", true},
		"another namespace is another pod":  {append([]Checkpoint{elsewhere}, some...), Bounds{Keep: 3}, "", false},
		"by age":                            {some, Bounds{MaxAge: 3 * time.Hour}, "a''''':max_age a''':max_age", true},
		"all are too old":                   {some, Bounds{MaxAge: time.Hour}, "a''''':max_age a''':max_age b'':max_age a':max_age", true},
		"number and age":                    {some, Bounds{Keep: 2, MaxAge: 2 * time.Hour}, "a''''':keep a''':max_age b'':max_age", true},
		"none is over":                      {some, Bounds{Keep: 5, MaxAge: 10 * time.Hour, MaxTotalSize: 40}, "", false},
		"a byte too many":                   {some, Bounds{MaxTotalSize: 39}, "a''''':max_total_size", true},
		"half of the bytes":                 {some, Bounds{MaxTotalSize: 20}, "a''''':max_total_size a''':max_total_size", true},
		"what goes anyway makes room":       {some, Bounds{Keep: 2, MaxTotalSize: 30}, "a''''':keep", true},
		"the newest stays":                  {some, Bounds{MaxTotalSize: 1}, "a''''':max_total_size a''':max_total_size b'':max_total_size", true},
		"one that is larger than all may":   {some[:1], Bounds{MaxTotalSize: 1}, "", true},
		"one in use stays":                  {[]Checkpoint{at("a", 1, 10), at("a", 2, 10), stays(at("a", 3, 10))}, Bounds{Keep: 2}, "", true},
		"one in use counts":                 {[]Checkpoint{stays(at("a", 1, 10)), at("a", 2, 10), at("a", 3, 10)}, Bounds{Keep: 1}, "a''':keep a'':keep", true},
		"one in use stays whatever its age": {[]Checkpoint{stays(at("a", 9, 10))}, Bounds{MaxAge: time.Hour}, "", true},
		"one in use takes room":             {[]Checkpoint{at("a", 1, 10), at("b", 2, 10), stays(at("c", 3, 10))}, Bounds{MaxTotalSize: 20}, "b'':max_total_size", true},
		"of one time":                       {[]Checkpoint{at("x", 1, 1), at("y", 1, 1)}, Bounds{MaxTotalSize: 1}, "x':max_total_size", true},
		"of the future":                     {[]Checkpoint{at("x", -1, 1), at("x", 0, 1)}, Bounds{Keep: 1, MaxAge: time.Hour}, "x:keep", true},
	} {
		before := slices.Clone(c.all)
		var got []string
		for _, r := range Expired(c.all, c.bounds, now) {
			got = append(got, r.Directory+":"+string(r.Reason))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		if got := Exceeded(c.all, c.bounds, now); got != c.exceeded {
			t.Errorf("%s: exceeded is %v", name, got)
		}
		if !slices.Equal(c.all, before) {
			t.Errorf("%s: it changed its argument", name)
		}
	}
}
