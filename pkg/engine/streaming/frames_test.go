package streaming

import (
	"bytes"
	"testing"
)

func TestGoodbyesAreSeenAmongFrames(t *testing.T) {
	mask := []byte{1, 2, 3, 4}
	frame := func(opcode byte, length ...byte) []byte {
		length[0] |= maskBit
		return append(append([]byte{0x80 | opcode}, length...), mask...)
	}
	// Whatever a payload is made of, it begins no frame.
	payload := func(size int) []byte { return bytes.Repeat([]byte{0x88}, size) }
	bye := append(frame(closeOpcode, 2), 0, 0)
	for _, test := range []struct {
		name string
		sent []byte
		want bool
	}{
		{"nothing", nil, false},
		{"a close", bye, true},
		{"a close without a status", frame(closeOpcode, 0), true},
		{"half of a header", bye[:5], false},
		{"a ping", frame(9, 0), false},
		{"an empty frame and a close", append(frame(2, 0), bye...), true},
		{"data", append(frame(2, 125), payload(125)...), false},
		{"data and a close", append(append(frame(2, 125), payload(125)...), bye...), true},
		{"data of 16 bits and a close", append(append(frame(2, length16, 1, 0), payload(256)...), bye...), true},
		{"data of 64 bits and a close", append(append(frame(2, length64, 0, 0, 0, 0, 0, 1, 0, 0), payload(1<<16)...), bye...), true},
		{"data of 64 bits that has not come yet", append(frame(2, length64, 0, 0, 0, 0, 0, 1, 0, 0), payload(1<<15)...), false},
		{"without a mask", append([]byte{0x82, 1, 0x88}, bye...), true},
	} {
		var atOnce, byByte frames
		if got := atOnce.end(test.sent); got != test.want {
			t.Errorf("%s, at once: %v", test.name, got)
		}
		got := false
		for i := range test.sent {
			got = byByte.end(test.sent[i : i+1])
		}
		if got != test.want {
			t.Errorf("%s, byte by byte: %v", test.name, got)
		}
	}
}
