package cli

import (
	"fmt"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestSizes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 10 << 10: "10 KiB", 1536 << 10: "1.5 MiB", 66 << 20: "66 MiB", 3 << 40: "3.0 TiB", 5000 << 40: "5000 TiB"} {
		test.Equal(t, fmt.Sprintf("%d", n), Size(n), want)
	}
}
