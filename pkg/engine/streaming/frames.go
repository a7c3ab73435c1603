package streaming

import "encoding/binary"

// frames follows what a client sends over WebSocket (RFC 6455, section 5.2), so far
// as to see it say goodbye. The zero value is at the beginning of the first frame.
type frames struct {
	header []byte // of the frame that has begun, as far as it is known
	left   uint64 // of the frame's payload
	ended  bool
}

const (
	opcodeBits  = 0x0f
	closeOpcode = 0x8
	maskBit     = 0x80
	maskSize    = 4
	lengthBits  = 0x7f
	length16    = 126 // the length is in two bytes that follow
	length64    = 127 // in eight
)

// end takes what was read next, and says whether a close frame has begun by then.
func (f *frames) end(b []byte) bool {
	for len(b) > 0 && !f.ended {
		if f.left > 0 {
			n := min(f.left, uint64(len(b)))
			f.left -= n
			b = b[n:]
			continue
		}
		f.header = append(f.header, b[0])
		b = b[1:]
		if length, whole := payload(f.header); whole {
			f.left, f.ended = length, f.header[0]&opcodeBits == closeOpcode
			f.header = f.header[:0]
		}
	}
	return f.ended
}

// payload is the length that a frame's header gives, if all of the header is there.
func payload(header []byte) (length uint64, whole bool) {
	if len(header) < 2 {
		return 0, false
	}
	length, size := uint64(header[1]&lengthBits), 2
	switch length {
	case length16:
		size += 2
	case length64:
		size += 8
	}
	end := size
	if header[1]&maskBit != 0 {
		end += maskSize
	}
	if len(header) < end {
		return 0, false
	}
	switch length {
	case length16:
		length = uint64(binary.BigEndian.Uint16(header[2:]))
	case length64:
		length = binary.BigEndian.Uint64(header[2:])
	}
	return length, true
}
