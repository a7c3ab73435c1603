package network

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
)

// InterfaceStats contains the traffic counters of one interface since its creation.
type InterfaceStats struct {
	Name                                    string
	RxBytes, RxPackets, RxErrors, RxDropped uint64
	TxBytes, TxPackets, TxErrors, TxDropped uint64
}

// Traffic is what Stats read in one network namespace.
type Traffic struct {
	// Interfaces are all but lo. The default interface, eth0, is the first if it exists.
	Interfaces []InterfaceStats
	// Err is errdefs.ErrNotFound if the namespace is gone.
	Err error
}

// Stats reads the counters of network namespaces, in their order. A thread for each processor enters
// its share of them and reads the kernel's table: a thread or a netlink socket for each namespace
// would cost several times the read.
func Stats(nsPaths ...string) []Traffic {
	all := make([]Traffic, len(nsPaths))
	share := len(all)/runtime.GOMAXPROCS(0) + 1
	var threads sync.WaitGroup
	for begin := 0; begin < len(all); begin += share {
		end := min(begin+share, len(all))
		threads.Go(func() { readTraffic(nsPaths[begin:end], all[begin:end]) })
	}
	threads.Wait()
	return all
}

func readTraffic(nsPaths []string, into []Traffic) {
	var text bytes.Buffer
	errs := namespaces.DoEach(nsPaths, func(i int) error {
		text.Reset()
		table, err := os.Open("/proc/thread-self/net/dev")
		if err != nil {
			return err
		}
		defer table.Close()
		if _, err := text.ReadFrom(table); err != nil {
			return err
		}
		into[i].Interfaces, err = parseInterfaces(text.Bytes())
		return err
	})
	for i, err := range errs {
		if err != nil {
			into[i].Err = fmt.Errorf("network statistics: %w", err)
		}
	}
}

// parseInterfaces parses /proc/net/dev: after two lines of headings, each line has a name, eight
// numbers of received traffic, and eight of sent traffic.
func parseInterfaces(text []byte) ([]InterfaceStats, error) {
	var all []InterfaceStats
	for line := range bytes.Lines(text) {
		name, numbers, isInterface := bytes.Cut(line, []byte{':'})
		words := bytes.Fields(numbers)
		s := InterfaceStats{Name: string(bytes.TrimSpace(name))}
		if !isInterface || s.Name == "lo" {
			continue
		}
		if len(words) < 12 {
			return nil, errdefs.ErrInternal.WithMessage(fmt.Sprintf("unknown format of /proc/net/dev: %.200q", line))
		}
		targets := []*uint64{&s.RxBytes, &s.RxPackets, &s.RxErrors, &s.RxDropped, &s.TxBytes, &s.TxPackets, &s.TxErrors, &s.TxDropped}
		for i, word := range slices.Concat(words[:4], words[8:12]) {
			n, err := strconv.ParseUint(string(word), 10, 64)
			if err != nil {
				return nil, fmt.Errorf("interface %s: %w", s.Name, err)
			}
			*targets[i] = n
		}
		if s.Name == defaultInterface {
			all = slices.Insert(all, 0, s)
		} else {
			all = append(all, s)
		}
	}
	return all, nil
}
