// Package wire is the protocol between a test on the host and the agent in a guest, over one serial
// port. It consists of frames, which belong to one command in the guest or to the connection.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames.
const (
	// Hello begins a conversation: the agent kills the commands of the previous one and sends Hello
	// back.
	Hello Kind = 'H'
	// Ping is answered with Ping.
	Ping Kind = 'P'
	// Start starts a command: a Command as JSON.
	Start Kind = 'S'
	// Input is a part of a command's input; an empty part is its end.
	Input Kind = 'I'
	// Signal is a signal, as one byte, for the process group of a command.
	Signal Kind = 'K'
	// Stdout and Stderr are parts of a command's output.
	Stdout Kind = 'O'
	Stderr Kind = 'E'
	// Exit is the exit of a command: an Ended as JSON.
	Exit Kind = 'X'
)

// Command is a command to run in a guest.
type Command struct {
	Args []string
	Env  []string
	Dir  string
	// Own lets the command run on when the next conversation begins.
	Own bool
}

// Ended is the exit of a command. Code is 128 plus the signal if it was killed; Error is set if it
// could not be started.
type Ended struct {
	Code  int
	Error string
}

// Frame is one message.
type Frame struct {
	Kind    Kind
	ID      uint32
	Payload []byte
}

const (
	header = 9
	// Most is the limit of a payload, because a port's buffers are small.
	Most = 32 << 10
)

// Write sends a frame in one piece.
func Write(w io.Writer, f Frame) error {
	if len(f.Payload) > Most {
		return fmt.Errorf("a frame of %d bytes is longer than %d", len(f.Payload), Most)
	}
	b := make([]byte, header, header+len(f.Payload))
	b[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(b[1:], f.ID)
	binary.BigEndian.PutUint32(b[5:], uint32(len(f.Payload)))
	_, err := w.Write(append(b, f.Payload...))
	return err
}

// Read receives a frame.
func Read(r io.Reader) (Frame, error) {
	var b [header]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Frame{}, err
	}
	length := binary.BigEndian.Uint32(b[5:])
	if length > Most {
		return Frame{}, fmt.Errorf("a frame of %d bytes: the connection is out of sync", length)
	}
	f := Frame{Kind: Kind(b[0]), ID: binary.BigEndian.Uint32(b[1:]), Payload: make([]byte, length)}
	_, err := io.ReadFull(r, f.Payload)
	return f, err
}
