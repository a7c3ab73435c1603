package featurefile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// largest is the limit in bytes of Node Feature Discovery, which ignores larger files.
const largest = 64 << 10

const (
	head    = "# Written by berth, again and again: changes here are lost.\n"
	expiry  = "# +expiry-time="
	noLabel = "# +no-label" // applies to the next line only
)

// Content is the content of the files.
type Content struct {
	// Labels become labels of the node, and features for rules.
	Labels []nodelabel.Fact
	// Features are for rules only.
	Features []nodelabel.Fact
	// Lasting are labels without an expiry time.
	Lasting []nodelabel.Fact
	// Unprobed are handlers that were not probed yet. The facts that an earlier Keeper wrote about
	// them stay until the probe, but not beyond their expiry time.
	Unprobed []string

	// end limits the expiry time because the content includes facts of an earlier Keeper; zero
	// means no limit.
	end time.Time
}

// lasting returns the -present file's content.
func (c Content) lasting() Content { return Content{Labels: c.Lasting} }

// text returns a file with as many labels and features as fit, and the number of facts left out.
// The zero time means no expiry. Pure.
func (c Content) text(expires time.Time) (text string, left int) {
	var b strings.Builder
	b.WriteString(head)
	if !expires.IsZero() {
		fmt.Fprintf(&b, "%s%s\n", expiry, expires.UTC().Format(time.RFC3339))
	}
	add := func(facts []nodelabel.Fact, directive string) {
		for i, f := range facts {
			line := directive + f.Key + "=" + f.Value + "\n"
			if b.Len()+len(line) > largest {
				left += len(facts) - i
				return
			}
			b.WriteString(line)
		}
	}
	add(c.Labels, "")
	add(c.Features, noLabel+"\n")
	return b.String(), left
}

// expires returns the expiry time of a file's text; zero if it has none. Pure.
func expires(text string) time.Time {
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, expiry); is {
			if t, err := time.Parse(time.RFC3339, strings.TrimSpace(value)); err == nil {
				return t
			}
		}
	}
	return time.Time{}
}

// due reports whether the file must be rewritten: if its content differs, if less than half of
// lifetime is left, or if more than lifetime is left because the clock was set. A lifetime of zero
// means no expiry. Pure.
func due(text string, c Content, lifetime time.Duration, now time.Time) bool {
	until := expires(text)
	if should, _ := c.text(until); text != should {
		return true
	}
	if lifetime == 0 {
		return !until.IsZero()
	}
	if !c.end.IsZero() && !until.Before(c.end) {
		return until.After(c.end)
	}
	left := until.Sub(now)
	return left <= lifetime/2 || left > lifetime
}

// untrue reports whether a file's text has a label that the content lacks. Pure.
func untrue(text string, c Content) bool {
	return slices.ContainsFunc(parse(text).Labels, func(f nodelabel.Fact) bool { return !slices.Contains(c.Labels, f) })
}

// parse reads the facts of a file's text. Pure.
func parse(text string) Content {
	var c Content
	to := &c.Labels
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == noLabel {
			to = &c.Features
			continue
		}
		if key, value, is := strings.Cut(line, "="); is && !strings.HasPrefix(line, "#") {
			*to = append(*to, nodelabel.Fact{Key: key, Value: value})
		}
		to = &c.Labels
	}
	return c
}

// only returns the facts about some handlers. Pure.
func (c Content) only(handlers []string) Content {
	of := func(facts []nodelabel.Fact) []nodelabel.Fact {
		return slices.DeleteFunc(slices.Clone(facts), func(f nodelabel.Fact) bool {
			return !slices.ContainsFunc(handlers, func(name string) bool { return nodelabel.IsAbout(f.Key, name) })
		})
	}
	return Content{Labels: of(c.Labels), Features: of(c.Features)}
}

// merge returns c with the earlier facts, which replace facts of c with the same key. Pure.
func (c Content) merge(earlier Content) Content {
	kept := func(earlier, now []nodelabel.Fact) []nodelabel.Fact {
		// Earlier facts come first, in their order: labels with the value nodelabel.Ready before others.
		return append(slices.Clone(earlier), slices.DeleteFunc(slices.Clone(now), func(f nodelabel.Fact) bool {
			return slices.ContainsFunc(earlier, func(e nodelabel.Fact) bool { return e.Key == f.Key })
		})...)
	}
	c.Labels, c.Features = kept(earlier.Labels, c.Labels), kept(earlier.Features, c.Features)
	return c
}
