package wanted

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

func TestUntilItEnds(t *testing.T) {
	stopped := errors.New("the pod was stopped")
	ctx, stop := context.WithCancelCause(t.Context())
	from, to := Reader(ctx, strings.NewReader("memory")), &bytes.Buffer{}
	half := make([]byte, 3)
	if n, err := from.Read(half); n != 3 || err != nil {
		t.Errorf("read %d bytes, %v", n, err)
	}
	if n, err := Writer(ctx, to).Write(half); n != 3 || err != nil || to.String() != "mem" {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
	stop(stopped)
	if rest, err := io.ReadAll(from); len(rest) > 0 || !errors.Is(err, stopped) {
		t.Errorf("read %q, %v", rest, err)
	}
	if n, err := Writer(ctx, to).Write(half); n != 0 || !errors.Is(err, stopped) || to.String() != "mem" {
		t.Errorf("wrote %d bytes, %v", n, err)
	}
}
