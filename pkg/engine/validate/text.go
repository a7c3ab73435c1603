package validate

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
)

const (
	// maxName is the longest name or id, in bytes: the length of a DNS name,
	// and short enough to be part of a file name.
	maxName = 253
	// maxPath is PATH_MAX without its NUL.
	maxPath = 4095
	// maxQuoted is how many bytes of a bad value an error repeats.
	maxQuoted = 64
)

// need says whether an empty value is a mistake.
type need bool

const (
	required need = true
	optional need = false
)

// quoted is a value as errors show it: escaped, and cut to a fixed length.
func quoted(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	return strconv.Quote(strings.ToValidUTF8(s[:maxQuoted], "")) + "…"
}

// clean checks that a text has no NUL, which would end it early in the kernel,
// and no control character, which would break lines in files and logs.
func clean(field, s string) error {
	if i := strings.IndexFunc(s, unicode.IsControl); i >= 0 {
		return invalid(field, "%s has a control character at byte %d; remove it", quoted(s), i)
	}
	return nil
}

// withoutNUL checks a text that may hold anything else.
func withoutNUL(field, s string) error {
	if i := strings.IndexByte(s, 0); i >= 0 {
		return invalid(field, "%s has a NUL at byte %d, which ends a string for the kernel; remove it", quoted(s), i)
	}
	return nil
}

// name checks a required name that becomes a part of keys and file names.
func name(field, s string) error {
	switch {
	case s == "":
		return invalid(field, "is empty; it is required")
	case len(s) > maxName:
		return invalid(field, "%s has %d bytes; use at most %d", quoted(s), len(s), maxName)
	case strings.ContainsRune(s, '/') || s == "." || s == "..":
		return invalid(field, "%s is a path; use a plain name", quoted(s))
	}
	return clean(field, s)
}

// ID checks an id or the beginning of one. kind is the field that holds it, as
// the error shall name it. Ids become file names, hence the narrow alphabet;
// every runtime's ids are within it.
func ID(kind, id string) error {
	if err := name(kind, id); err != nil {
		return err
	}
	for i := range len(id) {
		if !idByte(id[i], i == 0) {
			return invalid(kind, "%s is not an id; use letters, digits, and after the first also '-', '_' and '.'", quoted(id))
		}
	}
	return nil
}

func idByte(c byte, atStart bool) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	default:
		return !atStart && strings.IndexByte("-_.", c) >= 0
	}
}

// fits checks what is common to absolute and relative paths.
func fits(field, p string) error {
	if len(p) > maxPath {
		return invalid(field, "has %d bytes; use at most %d", len(p), maxPath)
	}
	return withoutNUL(field, p)
}

// absolute checks a path on the host or in the container.
func absolute(field, p string, n need) error {
	switch {
	case p == "" && n == optional:
		return nil
	case p == "":
		return invalid(field, "is empty; give an absolute path")
	case !strings.HasPrefix(p, "/"):
		return invalid(field, "%s is relative; give an absolute path", quoted(p))
	}
	return fits(field, p)
}

// inside checks a path that is taken relative to a directory and must stay in
// it. Symbolic links are the business of whoever opens it.
func inside(field, p, dir string) error {
	switch {
	case p == "":
		return nil
	case !filepath.IsLocal(p):
		return invalid(field, "%s leads out of %s; give a path relative to it without \"..\"", quoted(p), dir)
	}
	return fits(field, p)
}

// hasParent reports whether one of the path's elements is "..".
func hasParent(p string) bool {
	for element := range strings.SplitSeq(p, "/") {
		if element == ".." {
			return true
		}
	}
	return false
}

// invalid is the one place that gives a mistake its class and shape.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// first runs the checks in order and returns the first mistake.
func first(checks ...func() error) error {
	for _, check := range checks {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// each checks every item of a list, and names it by its index.
func each[T any](field string, items []T, check func(field string, item T) error) error {
	for i, item := range items {
		if err := check(fmt.Sprintf("%s[%d]", field, i), item); err != nil {
			return err
		}
	}
	return nil
}

// known checks an enumeration: the generated names are the values that this
// build understands, and acting on another one would be a guess.
func known[E ~int32](field string, value E, names map[int32]string) error {
	if _, ok := names[int32(value)]; ok {
		return nil
	}
	return invalid(field, "%d is not a known value; use one of %s", value, listed(names))
}

// listed gives the names of an enumeration in the order of their numbers, and
// only the first few of a long one.
func listed(names map[int32]string) string {
	const most = 8
	text := ""
	for i, n := range slices.Sorted(maps.Keys(names)) {
		if i == most {
			return text + ", …"
		}
		if i > 0 {
			text += ", "
		}
		text += names[n]
	}
	return text
}
