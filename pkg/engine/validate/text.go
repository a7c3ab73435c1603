package validate

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"
)

const (
	// maxName is the longest name or id, in bytes: the length of a DNS name, and short enough for a
	// part of a file name.
	maxName = 253
	// maxPath is PATH_MAX without its NUL.
	maxPath = 4095
	// maxQuoted is the number of bytes of a bad value in an error.
	maxQuoted = 64
)

// need is whether an empty value is a mistake.
type need bool

const (
	required need = true
	optional need = false
)

// quoted is a value in an error: escaped, and cut to a fixed length.
type quoted string

func (q quoted) String() string {
	if len(q) <= maxQuoted {
		return strconv.Quote(string(q))
	}
	return strconv.Quote(strings.ToValidUTF8(string(q[:maxQuoted]), "")) + "…"
}

// clean checks that a text has no NUL, which would end it early in the kernel, and no control
// character, which would break lines in files and logs.
func clean(field, s string) error {
	i := strings.IndexFunc(s, unicode.IsControl)
	return invalidIf(i >= 0, field, "%s has a control character at byte %d; remove it", quoted(s), i)
}

// withoutNUL checks a text that may contain any other character.
func withoutNUL(field, s string) error {
	i := strings.IndexByte(s, 0)
	return invalidIf(i >= 0, field, "%s has a NUL at byte %d, which ends a string for the kernel; remove it", quoted(s), i)
}

// name checks a required name that becomes a part of keys and file names.
func name(field, s string) error {
	return first(
		invalidIf(s == "", field, "is empty; it is required"),
		atMost(field, s, maxName),
		invalidIf(strings.ContainsRune(s, '/') || s == "." || s == "..", field, "%s is a path; use a plain name", quoted(s)),
		clean(field, s),
	)
}

// checkID checks an id or the beginning of one. kind is the name of its field in errors. Ids become
// file names, hence the narrow alphabet, which includes every runtime's ids.
func checkID(kind, id string) error {
	if err := name(kind, id); err != nil {
		return err
	}
	return invalidIf(!idForm.MatchString(id), kind, "%s is not an id; use letters, digits, and after the first also '-', '_' and '.'", quoted(id))
}

var idForm = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

func atMost(field, s string, most int) error {
	return invalidIf(len(s) > most, field, "%s has %d bytes; use at most %d", quoted(s), len(s), most)
}

// fits checks the rules common to absolute and relative paths.
func fits(field, p string) error { return first(atMost(field, p, maxPath), withoutNUL(field, p)) }

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

// inside checks a path that is relative to a directory and must stay in it. The code that opens it
// handles symbolic links.
func inside(field, p, dir string) error {
	return first(
		invalidIf(p != "" && !filepath.IsLocal(p), field, "%s leads out of %s; give a path relative to it without \"..\"", quoted(p), dir),
		fits(field, p),
	)
}

// invalid creates every error of this package, with its class and form.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

func invalidIf(wrong bool, field, format string, args ...any) error {
	if wrong {
		return invalid(field, format, args...)
	}
	return nil
}

// first returns the first mistake. All checks have run by then, so each must be safe and cheap,
// even for values that an earlier check refuses.
func first(mistakes ...error) error { return cmp.Or(mistakes...) }

// eachValue checks every value of a map, in the order of its keys, so that equal requests get equal
// errors.
func eachValue(field string, values map[string]string, check func(field, key, value string) error) error {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if err := check(fmt.Sprintf("%s[%s]", field, quoted(key)), key, values[key]); err != nil {
			return err
		}
	}
	return nil
}

// each checks every item of a list, with its index in the field name.
func each[T any](field string, items []T, check func(field string, item T) error) error {
	for i, item := range items {
		if err := check(fmt.Sprintf("%s[%d]", field, i), item); err != nil {
			return err
		}
	}
	return nil
}

// known checks an enumeration: names are the values that this build supports.
func known[E ~int32](field string, value E, names map[int32]string) error {
	if _, ok := names[int32(value)]; ok {
		return nil
	}
	const most = 8
	var listed []string
	for _, n := range slices.Sorted(maps.Keys(names)) {
		listed = append(listed, names[n])
	}
	if len(listed) > most {
		listed = append(listed[:most], "…")
	}
	return invalid(field, "%d is not a known value; use one of %s", value, strings.Join(listed, ", "))
}
