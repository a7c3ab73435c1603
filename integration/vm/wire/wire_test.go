package wire

import (
	"bytes"
	"reflect"
	"testing"
)

func TestFrames(t *testing.T) {
	var line bytes.Buffer
	sent := []Frame{
		{Kind: Hello, Payload: []byte{}},
		{Kind: Stdout, ID: 1<<32 - 1, Payload: bytes.Repeat([]byte{0, 0xff}, Most/2)},
		{Kind: Exit, ID: 7, Payload: []byte("{}")},
	}
	for _, f := range sent {
		if err := Write(&line, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range sent {
		if got, err := Read(&line); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read frame %c %d of %d bytes, %v, want the frame that was sent", got.Kind, got.ID, len(got.Payload), err)
		}
	}
}

func TestLongFrames(t *testing.T) {
	var line bytes.Buffer
	if err := Write(&line, Frame{Kind: Input, Payload: make([]byte, Most+1)}); err == nil || line.Len() > 0 {
		t.Errorf("a frame that is too long was written: %d bytes, %v", line.Len(), err)
	}
	// Text of another program must not be read as a frame of a gigabyte.
	if f, err := Read(bytes.NewBufferString("login: root\n")); err == nil {
		t.Errorf("text was read as frame %v", f)
	}
}
