package config

import (
	"strings"
)

// renamed are the keys of a handler's table that had another name once. The old
// ones go on working, in files and in commands, and are shown by their new names.
var renamed = map[string]string{
	"next":         "candidate",
	"probe_canary": "self_check_pod",
}

// CurrentKey is what a key inside a handler's table is called today.
func CurrentKey(key string) string {
	first, rest, below := strings.Cut(key, ".")
	today, is := renamed[first]
	switch {
	case !is:
		return key
	case below:
		return today + "." + rest
	}
	return today
}

// modernize gives the handlers' tables of a file today's keys, so that files
// with old and new names merge. A table that has both is told so.
func (d *document) modernize() {
	tables, _ := d.values["runtimes"].(map[string]any)
	for name, table := range tables {
		if table, ok := table.(map[string]any); ok {
			for old, today := range renamed {
				d.rename(under("runtimes", name), table, old, today)
			}
		}
	}
}

func (d *document) rename(at string, table map[string]any, old, today string) {
	value, there := table[old]
	if !there {
		return
	}
	delete(table, old)
	from, to := under(at, old), under(at, today)
	if _, both := table[today]; both {
		place := d.origins[from]
		d.problems = append(d.problems, Problem{
			File: place.File, Line: place.Line, Column: place.Column, Key: from,
			Message: "is the old name of " + today + ", which is set as well; remove one of the two",
		})
		return
	}
	table[today] = value
	for key, place := range d.origins {
		if rest, below := strings.CutPrefix(key, from); below && (rest == "" || strings.ContainsRune(".[", rune(rest[0]))) {
			delete(d.origins, key)
			d.origins[to+rest] = place
		}
	}
}
