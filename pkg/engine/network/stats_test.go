package network

import (
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
)

const headings = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
`

func TestParseInterfaces(t *testing.T) {
	const (
		lo   = "    lo: 110300360329 11136480    0    0    0     0          0         0 110300360329 11136480    0    0    0     0       0          0\n"
		net1 = "net1.100: 1 2 3 4 91 92 93 94 5 6 7 8 95 96 97 98\n"
		eth0 = "  eth0:18446744073709551615       2    0    0    0     0          0         0        9       1    0    0    0     0       0          0\n"
	)
	first := InterfaceStats{Name: "eth0", RxBytes: 1<<64 - 1, RxPackets: 2, TxBytes: 9, TxPackets: 1}
	other := InterfaceStats{Name: "net1.100", RxBytes: 1, RxPackets: 2, RxErrors: 3, RxDropped: 4, TxBytes: 5, TxPackets: 6, TxErrors: 7, TxDropped: 8}
	for text, want := range map[string][]InterfaceStats{
		"":                          nil,
		headings + lo:               nil,
		headings + lo + net1 + eth0: {first, other}, // eth0 is first, in any order of lines
		headings + eth0 + net1:      {first, other},
	} {
		if got := test.Value(parseInterfaces([]byte(text)))(t); !slices.Equal(got, want) {
			t.Errorf("%q: got %+v, want %+v", text, got, want)
		}
	}
	test.Is(t, test.Err(parseInterfaces([]byte(headings+"eth0: 1 2 3\n"))), errdefs.IsInternal, "a line with too few numbers")
	if _, err := parseInterfaces([]byte(headings + "eth0: 1 2 3 4 5 6 7 8 9 10 11 many\n")); err == nil {
		t.Error("a word that is not a number was accepted")
	}
}
