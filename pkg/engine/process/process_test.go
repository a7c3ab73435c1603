package process

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestParseRollup(t *testing.T) {
	const text = "557a-7ffc ---p 00000000 00:00 0  [rollup]\nRss:  1740 kB\nPss:   243 kB\nPss_Anon:  116 kB\nSwap:  9 kB\nSwapPss:  7 kB\n"
	if sum, ok := parseRollup([]byte(text)); !ok || sum != 250<<10 {
		t.Errorf("%d, %v", sum, ok)
	}
	for _, text := range []string{"", "Rss: 1 kB\n", "Pss: much kB\n"} {
		if sum, ok := parseRollup([]byte(text)); ok {
			t.Errorf("%q: %d", text, sum)
		}
	}
}

// Look finds a real child below its parent, and reports the child's memory and CPU time.
func TestLook(t *testing.T) {
	if os.Getenv("PROCESS_TEST_HOLDS") != "" {
		hold(t)
		return
	}
	in, out, err := os.Pipe()
	test.Must(t, err)
	defer in.Close()
	const megabytes = 64
	cmd := exec.Command(os.Args[0], "-test.run=^TestLook$")
	cmd.Env = append(os.Environ(), "PROCESS_TEST_HOLDS=1")
	cmd.Stdout = out
	stdin := test.Value(cmd.StdinPipe())(t)
	test.Must(t, cmd.Start())
	defer func() { _ = stdin.Close(); _ = cmd.Wait() }()
	_ = out.Close()
	test.Must(t, test.Err(in.Read(make([]byte, 1))))
	all := test.Value(Look())(t)
	below := all.Below(os.Getpid(), func(p Process) bool { return p.PID != os.Getpid() && p.PID != cmd.Process.Pid })
	if len(below) != 2 || below[1].PID != cmd.Process.Pid || below[1].Parent != os.Getpid() {
		t.Fatalf("below this process are %+v, want only %d", below, cmd.Process.Pid)
	}
	p := below[1]
	if age := all.Age(p); age > 10*time.Minute {
		t.Errorf("the child is %v old", age)
	}
	if m, err := p.Memory(); err != nil || m < megabytes<<20 || m > (megabytes+40)<<20 {
		t.Errorf("the child holds %d MiB, but Memory reports %d: %v", megabytes, m>>20, err)
	}
	if used, err := p.CPU(); err != nil || used < 200*time.Millisecond || used > time.Minute {
		t.Errorf("the child used 200 ms, but CPU reports %v: %v", used, err)
	}
	if !p.Names("nothing of the kind", "TestLook") || p.Names("nothing of the kind") {
		t.Error("Names does not find the child's arguments, or finds others")
	}
	test.Must(t, stdin.Close())
	test.Must(t, cmd.Wait())
	test.Is(t, test.Err(p.Memory()), errdefs.IsNotFound, "memory of a process that has exited")
	test.Is(t, test.Err(p.CPU()), errdefs.IsNotFound, "CPU time of a process that has exited")
	other := Process{PID: os.Getpid(), Started: 1}
	test.Is(t, test.Err(other.Memory()), errdefs.IsNotFound, "memory of another process with the same PID")
}

// hold runs in the child.
func hold(t *testing.T) {
	// Mapped instead of allocated, because the race detector needs additional memory for Go's heap.
	text := test.Value(unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
	for i := 0; i < len(text); i += os.Getpagesize() {
		text[i] = 1
	}
	for used := (unix.Timespec{}); used.Nano() < (200 * time.Millisecond).Nanoseconds(); {
		test.Must(t, unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &used))
	}
	test.Must(t, test.Err(os.Stdout.WriteString("x")))
	_, _ = os.Stdin.Read(make([]byte, 1))
	if text[0] != 1 {
		t.Fatal("the memory was changed")
	}
}
