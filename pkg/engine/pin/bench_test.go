package pin

import (
	"path/filepath"
	"strconv"
	"testing"
)

func BenchmarkCreate(b *testing.B) {
	base := b.TempDir()
	for i := 0; b.Loop(); i++ {
		r := Request{Dir: filepath.Join(base, strconv.Itoa(i)), Net: true, IPC: true, UTS: true, Hostname: "bench",
			Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "0", "net.ipv4.ping_group_range": "0 2147483647"}}
		create(b, r)
		b.StopTimer()
		if err := Release(r.Dir); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkRelease(b *testing.B) {
	base := b.TempDir()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		r := Request{Dir: filepath.Join(base, strconv.Itoa(i)), Net: true, IPC: true, UTS: true}
		create(b, r)
		b.StartTimer()
		if err := Release(r.Dir); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDo(b *testing.B) {
	ns := create(b, all(b))
	for b.Loop() {
		if err := Do(ns.Net, func() error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}
