// Package wire is how a test on the host and the agent in a guest speak over one
// serial port: frames, each of one command that runs in the guest, or of the line
// itself.
package wire

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Kind says what a frame is.
type Kind byte

// The kinds of frames.
const (
	// Hello begins a conversation: the agent ends what still runs of the one
	// before and sends the payload back.
	Hello Kind = 'H'
	// Ping is answered with the same.
	Ping Kind = 'P'
	// Start starts a command: a Command as JSON.
	Start Kind = 'S'
	// Input is what a command reads; nothing is the end of it.
	Input Kind = 'I'
	// Signal is one byte, for all processes of a command.
	Signal Kind = 'K'
	// Stdout and Stderr are what a command wrote.
	Stdout Kind = 'O'
	Stderr Kind = 'E'
	// Exit is the end of a command: an Ended as JSON.
	Exit Kind = 'X'
)

// Command is what runs in a guest.
type Command struct {
	Args []string
	Env  []string
	Dir  string
	// Own leaves the command alone when the conversation ends.
	Own bool
}

// Ended is how it ended: with a code, which is 128 and the signal if it was killed,
// or not at all because it could not be started.
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
	// Most is the longest payload: a port's buffers are small.
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

// Read receives one.
func Read(r io.Reader) (Frame, error) {
	var b [header]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return Frame{}, err
	}
	length := binary.BigEndian.Uint32(b[5:])
	if length > Most {
		return Frame{}, fmt.Errorf("a frame of %d bytes: the line is out of step", length)
	}
	f := Frame{Kind: Kind(b[0]), ID: binary.BigEndian.Uint32(b[1:]), Payload: make([]byte, length)}
	_, err := io.ReadFull(r, f.Payload)
	return f, err
}
