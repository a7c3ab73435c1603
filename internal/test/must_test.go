package test

import (
	"errors"
	"fmt"
	"testing"
)

// recorder is a testing.TB that records its failures.
type recorder struct {
	testing.TB
	failures []string
}

func (*recorder) Helper() {}

func (r *recorder) Errorf(format string, args ...any) {
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func TestSays(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		texts []string
		fails int
	}{
		"no error":              {nil, nil, 1},
		"no error, texts":       {nil, []string{"a", "b"}, 1},
		"an error":              {errors.New("a b"), nil, 0},
		"an error, texts":       {errors.New("a b"), []string{"a", "b"}, 0},
		"an error, other texts": {errors.New("a b"), []string{"a", "c", "d"}, 2},
	} {
		r := &recorder{TB: t}
		Says(r, c.err, c.texts...)
		Equal(t, name+": failures", len(r.failures), c.fails)
	}
}

// Equal also accepts a nil interface value, which has no type to choose a format verb by.
func TestEqualOfNil(t *testing.T) {
	r := &recorder{TB: t}
	Equal[error](r, "the error", nil, errors.ErrUnsupported)
	EqualLists(t, "failures", r.failures, []string{"the error: got <nil>, want unsupported operation"})
}
