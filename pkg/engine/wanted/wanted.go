// Package wanted reads and writes large files until a context ends.
package wanted

import (
	"context"
	"errors"
	"io"
	"os"
)

// chunk is how much Copy copies between two checks of its context.
const chunk = 16 << 20

// Copy copies a file until ctx ends; then it returns the context's cause. The kernel copies,
// possibly without reading the data.
func Copy(ctx context.Context, to, from *os.File) error {
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		switch _, err := io.CopyN(to, from, chunk); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// Reader reads from r until ctx ends; then it returns the context's cause.
func Reader(ctx context.Context, r io.Reader) io.Reader { return until(ctx, r.Read) }

// Writer writes to w until ctx ends; then it returns the context's cause.
func Writer(ctx context.Context, w io.Writer) io.Writer { return until(ctx, w.Write) }

// transfer is a Read or a Write.
type transfer func(p []byte) (int, error)

func (t transfer) Read(p []byte) (int, error)  { return t(p) }
func (t transfer) Write(p []byte) (int, error) { return t(p) }

func until(ctx context.Context, t transfer) transfer {
	return func(p []byte) (int, error) {
		if err := context.Cause(ctx); err != nil {
			return 0, err
		}
		return t(p)
	}
}
