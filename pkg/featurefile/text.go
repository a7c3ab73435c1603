package featurefile

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/nodelabel"
)

// largest is the size in bytes above which Node Feature Discovery reads nothing of a file.
const largest = 64 << 10

const (
	head    = "# Written by berth, again and again: changes here are lost.\n"
	expiry  = "# +expiry-time="
	noLabel = "# +no-label" // is about the next line only
)

// Content is what the file tells.
type Content struct {
	// Labels become labels of the node, and features that rules can use.
	Labels []nodelabel.Fact
	// Features are for rules only.
	Features []nodelabel.Fact
	// Lasting are labels that count until they are removed.
	Lasting []nodelabel.Fact
	// Undecided are handlers of which nothing is known yet. What an earlier Keeper said of them
	// is said until something is, as long as it would have counted.
	Undecided []string

	// end is when all of it stops to count, because of something an earlier Keeper said; zero
	// is not known.
	end time.Time
}

// lasting is what the second file tells.
func (c Content) lasting() Content { return Content{Labels: c.Lasting} }

// text is a file with as much of labels and features as there is room for, and how many
// facts were left out. What it tells counts until expires; zero is for ever. Pure.
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

// expires is until when a file's text counts; zero if it does not say. Pure.
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

// due says whether a file with this text has to be written: because it tells
// something else, or counts for less than half of lifetime, or, for the clock was
// set, for longer than that. A lifetime of zero has no end. Pure.
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

// untrue says whether a file's text has a label that the content has not. Pure.
func untrue(text string, c Content) bool {
	return slices.ContainsFunc(parse(text).Labels, func(f nodelabel.Fact) bool { return !slices.Contains(c.Labels, f) })
}

// parse is what a file's text tells. Pure.
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

// about are the facts of some handlers. Pure.
func (c Content) about(handlers []string) Content {
	of := func(facts []nodelabel.Fact) []nodelabel.Fact {
		return slices.DeleteFunc(slices.Clone(facts), func(f nodelabel.Fact) bool {
			return !slices.ContainsFunc(handlers, func(name string) bool { return nodelabel.IsAbout(f.Key, name) })
		})
	}
	return Content{Labels: of(c.Labels), Features: of(c.Features)}
}

// keeping has what was said earlier of handlers in the place of what is said of them now.
// Pure.
func (c Content) keeping(earlier Content) Content {
	kept := func(earlier, now []nodelabel.Fact) []nodelabel.Fact {
		// Those that say which handlers take pods come first, as they did.
		return append(slices.Clone(earlier), slices.DeleteFunc(slices.Clone(now), func(f nodelabel.Fact) bool {
			return slices.ContainsFunc(earlier, func(e nodelabel.Fact) bool { return e.Key == f.Key })
		})...)
	}
	c.Labels, c.Features = kept(earlier.Labels, c.Labels), kept(earlier.Features, c.Features)
	return c
}
