package config

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Change is a key outside the handlers with different values in two configurations.
type Change struct {
	// Key is the full TOML key, such as "server.socket".
	Key string
	// From and To are its values in TOML.
	From, To string
	// Origin is the origin of the new value.
	Origin Origin
}

// String returns "key: from → to (origin)".
func (c Change) String() string {
	return fmt.Sprintf("%s: %s → %s (%s)", c.Key, c.From, c.To, c.Origin)
}

// Diff is the difference between two configurations. Names are sorted.
type Diff struct {
	// Added, Changed and Removed are handlers.
	Added, Changed, Removed []string
	// DefaultFrom and DefaultTo are the default handlers before and after.
	DefaultFrom, DefaultTo string
	// Live are the keys outside the handlers that take effect at once, Pending those that
	// need a restart.
	Live, Pending []Change
}

// Reload returns the configuration in force after a reload: next, but with the values of running
// for keys that need a restart. Neither argument is changed. Pure.
func Reload(running, next *Config) (effective *Config, d Diff) {
	c := *next
	c.origins = map[string]Origin{}
	maps.Copy(c.origins, next.origins)
	d = Diff{DefaultFrom: running.DefaultRuntime, DefaultTo: next.DefaultRuntime}
	d.handlers(digests(running), digests(next))
	for _, k := range configKeys() {
		from, to := reflect.ValueOf(*running).FieldByIndex(k.field), reflect.ValueOf(*next).FieldByIndex(k.field)
		if reflect.DeepEqual(from.Interface(), to.Interface()) {
			continue
		}
		key := k.String()
		change := Change{Key: key, From: literal(from.Interface()), To: literal(to.Interface()), Origin: next.Origin(key)}
		if k.reloadable() {
			d.Live = append(d.Live, change)
			continue
		}
		d.Pending = append(d.Pending, change)
		reflect.ValueOf(&c).Elem().FieldByIndex(k.field).Set(from)
		c.origins[key] = running.Origin(key)
	}
	return &c, d
}

// handlers compares handlers by their digests: the place of a Definition does not matter.
func (d *Diff) handlers(before, next map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(next)) {
		switch was, known := before[name]; {
		case !known:
			d.Added = append(d.Added, name)
		case was != next[name]:
			d.Changed = append(d.Changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, stays := next[name]; !stays {
			d.Removed = append(d.Removed, name)
		}
	}
}

// digests returns the digests of all handlers by name. A broken one has its reason instead, so that
// a repair is a change.
func digests(c *Config) map[string]string {
	all := map[string]string{}
	for _, d := range c.Runtimes {
		all[d.Name] = d.Digest()
	}
	for _, b := range c.Broken {
		all[b.Name] = "broken: " + b.Reason
	}
	return all
}
