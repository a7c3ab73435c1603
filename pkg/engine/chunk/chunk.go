// Package chunk sends a list as several messages, for the streaming twins of the
// CRI's list calls.
package chunk

import "google.golang.org/protobuf/proto"

// A message ends before it passes either bound. The kubelet takes up to 16 MiB,
// which one item cannot reach: annotations are bounded.
const (
	maxItems = 5000
	maxBytes = 1 << 20
)

// Send calls send with all items in their order, each once, and never with none.
// It ends with the first error of send.
func Send[T proto.Message](items []T, send func([]T) error) error {
	begin, size := 0, 0
	for i, item := range items {
		next := proto.Size(item)
		if i > begin && (i-begin == maxItems || size+next > maxBytes) {
			if err := send(items[begin:i]); err != nil {
				return err
			}
			begin, size = i, 0
		}
		size += next
	}
	if begin == len(items) {
		return nil
	}
	return send(items[begin:])
}
