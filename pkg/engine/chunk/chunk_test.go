package chunk

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
)

// images makes items of about that many bytes each.
func images(sizes ...int) []*runtimeapi.Image {
	var all []*runtimeapi.Image
	for _, size := range sizes {
		all = append(all, &runtimeapi.Image{Id: strings.Repeat("x", size)})
	}
	return all
}

func TestSend(t *testing.T) {
	many := make([]int, 2*maxItems+1)
	for name, c := range map[string]struct {
		items []*runtimeapi.Image
		want  []int // items of each message
	}{
		"nothing":                   {nil, nil},
		"one":                       {images(1), []int{1}},
		"all in one":                {images(100, 200, 300), []int{3}},
		"many small ones":           {images(many...), []int{maxItems, maxItems, 1}},
		"large ones":                {images(maxBytes/2, maxBytes/3, maxBytes/4, 1, 1), []int{2, 3}},
		"too large goes alone":      {images(1, 2*maxBytes, 1), []int{1, 1, 1}},
		"only one that is too much": {images(2 * maxBytes), []int{1}},
	} {
		t.Run(name, func(t *testing.T) {
			var sent []*runtimeapi.Image
			var messages []int
			test.Must(t, Send(c.items, func(part []*runtimeapi.Image) error {
				if size := proto.Size(&runtimeapi.StreamImagesResponse{Images: part}); len(part) > 1 && size > maxBytes+6*len(part) {
					t.Errorf("a message of %d items has %d bytes", len(part), size)
				}
				messages, sent = append(messages, len(part)), append(sent, part...)
				return nil
			}))
			if len(messages) != len(c.want) {
				t.Fatalf("messages of %v items, want %v", messages, c.want)
			}
			for i := range messages {
				if messages[i] != c.want[i] {
					t.Errorf("messages of %v items, want %v", messages, c.want)
				}
			}
			for i, item := range c.items {
				if sent[i] != item {
					t.Fatalf("item %d is another", i)
				}
			}
		})
	}
}

func TestSendEndsWithTheFirstError(t *testing.T) {
	broken := errors.New("gone")
	calls := 0
	err := Send(images(maxBytes, maxBytes, maxBytes), func([]*runtimeapi.Image) error {
		calls++
		return broken
	})
	if !errors.Is(err, broken) || calls != 1 {
		t.Errorf("%d calls, %v", calls, err)
	}
}
