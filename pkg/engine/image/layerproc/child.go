package layerproc

import (
	"archive/tar"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

// If os.Args[0] is name, the process is a child, which only unpacks layers. It serves before most
// packages are initialised.
func init() {
	if len(os.Args) == 2 && os.Args[0] == name {
		if err := serve(os.Args[1]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// answersFD is the socket to the daemon.
const answersFD = 3

// keptMemory is the most memory with which a child waits for another layer; with more it exits.
const keptMemory = 64 << 20

// serve unpacks layers until the daemon closes the socket.
func serve(memory string) error {
	limit, err := strconv.ParseInt(memory, 10, 64)
	if err != nil {
		return err
	}
	if err := confine(uint64(limit)); err != nil { //nolint:gosec // the daemon checks it
		return err
	}
	unix.CloseOnExec(answersFD)
	conn := os.NewFile(answersFD, name)
	u := &unpacker{maxWindow: uint64(limit) / windowShare, answers: json.NewEncoder(conn)} //nolint:gosec // see above
	for {
		l, blob, err := receive(conn)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var a answer
		a.Result, err = u.unpack(l, blob)
		a.set(errors.Join(err, blob.Close()))
		var used runtime.MemStats
		runtime.ReadMemStats(&used)
		a.Last = used.Sys-used.HeapReleased > keptMemory
		if err := u.answers.Encode(a); err != nil || a.Last {
			return err
		}
	}
}

// confine limits what this process may use.
func confine(memory uint64) error {
	// containerd's logs contain names in the layer. Standard error is for the reason of a crash.
	log.L.Logger.SetOutput(io.Discard)
	for resource, limit := range map[int]uint64{unix.RLIMIT_DATA: memory, unix.RLIMIT_CORE: 0} {
		// A limit of the daemon's unit may be lower, and then holds.
		var own unix.Rlimit
		if err := unix.Getrlimit(resource, &own); err != nil {
			return fmt.Errorf("read limit of resource %d: %w", resource, err)
		}
		limit = min(limit, own.Max)
		if err := unix.Setrlimit(resource, &unix.Rlimit{Cur: limit, Max: limit}); err != nil {
			return fmt.Errorf("limit resource %d: %w", resource, err)
		}
	}
	if err := os.WriteFile("/proc/self/comm", []byte(name), 0); err != nil {
		return fmt.Errorf("set the name of the process: %w", err)
	}
	// If the node runs out of memory, the child is killed instead of the daemon.
	return procfs.SetOOMScore(os.Getpid(), 1000)
}

// receive reads a request and the layer's file descriptor.
func receive(conn *os.File) (l Layer, blob *os.File, err error) {
	length, rights := make([]byte, 4), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(conn.Fd()), length, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return l, nil, err
	}
	if n == 0 {
		return l, nil, io.EOF
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil {
		return l, nil, err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return l, nil, err
	}
	request := make([]byte, binary.BigEndian.Uint32(length))
	if _, err := io.ReadFull(conn, request); err != nil {
		return l, nil, err
	}
	if err := json.Unmarshal(request, &l); err != nil {
		return l, nil, err
	}
	return l, os.NewFile(uintptr(fds[0]), "layer"), nil
}

const (
	// maxError bounds the text of an error, which may contain names in the layer.
	maxError = 4 << 10
	// maxAnswer bounds an answer, including escapes in its text.
	maxAnswer = 8 * maxError
)

// answer is what a child sends for a layer.
type answer struct {
	Result

	More bool // another answer for this layer follows
	Last bool // the child exits
	// Error is the text of an error. Errno, Below, Beyond and Invalid keep its class.
	Error                  string
	Errno                  syscall.Errno
	Below, Beyond, Invalid bool
}

func (a *answer) set(err error) {
	if err == nil {
		return
	}
	a.Error = fmt.Sprintf("%.*s", maxError, err.Error())
	a.Errno, _ = errors.AsType[syscall.Errno](err)
	a.Below, a.Beyond = errors.Is(err, ErrBelow), bounds.IsBeyond(err)
	a.Invalid = errdefs.IsInvalidArgument(err) || errors.Is(err, tar.ErrHeader)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		a.Error, a.Invalid = "layer ends too early: "+a.Error, true
	}
}

func (a *answer) err() error {
	switch {
	case a.Error == "":
		return nil
	case a.Below:
		return ErrBelow
	case a.Beyond:
		return bounds.Beyond("%s", a.Error)
	case a.Invalid:
		return fmt.Errorf("%s: %w", a.Error, errdefs.ErrInvalidArgument)
	case a.Errno != 0:
		return &kernelError{a.Error, a.Errno}
	}
	return errors.New(a.Error)
}

// kernelError is an errno with a text that already contains it.
type kernelError struct {
	text  string
	errno syscall.Errno
}

func (e *kernelError) Error() string { return e.text }
func (e *kernelError) Unwrap() error { return e.errno }
