package supervisor

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/supervisor/journal"
)

// Serve closes what it owns, also if it cannot serve.
func TestServeClosesWhatItOwns(t *testing.T) {
	dir := t.TempDir()
	locked := test.Value(journal.Lock(dir))(t)
	defer locked.Close()
	l := test.Value(net.Listen("unix", filepath.Join(dir, "s")))(t)
	pidfd := test.Value(unix.PidfdOpen(os.Getpid(), 0))(t)
	inherited := map[string]journal.Inherited{"a": {Pidfd: pidfd}}
	test.Is(t, Serve(t.Context(), Config{Dir: dir, Listener: l, Inherited: inherited}), errdefs.IsAlreadyExists, "Serve of a locked directory")
	test.ErrorIs(t, l.Close(), net.ErrClosed, "close the listener after Serve")
	test.ErrorIs(t, test.Err(unix.FcntlInt(uintptr(pidfd), unix.F_GETFD, 0)), unix.EBADF, "use the descriptor after Serve")
}

// The stdio that is closed while it is opened stays closed, even if its directory cannot be removed.
func TestCloseForeignDuringOpen(t *testing.T) {
	f := &foreign{journal: journal.Task{ID: "one"}}
	s := &supervisor{ctx: t.Context(), dir: "\x00", foreign: map[string]*foreign{"one": f}}
	test.Fails(t, s.closeForeign("one"), "a directory with an invalid name was removed")
	test.ErrorIs(t, f.open(s), context.Canceled, "open after close")
}
