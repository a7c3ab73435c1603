package cgroup

import "testing"

func BenchmarkReadStats(b *testing.B) {
	p := makeCgroup(b)
	join(b, p, "", start(b, "sleep", "300").Process.Pid)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadStats(p); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkReadStatsUnified(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, unifiedFiles)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ReadStats(Paths{Unified: dir}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHostPaths(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		HostPaths("/kubepods/burstable/pod1/" + id)
	}
}
