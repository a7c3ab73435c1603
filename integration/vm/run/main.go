// Run runs a command in a new virtual machine, which then ends.
//
//	go run ./integration/vm/run [-put FILE=/IN/THE/MACHINE]... [-memory MiB] [-cold] -- COMMAND...
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
	"github.com/berth-cri/berth/integration/vm/machine"
)

func main() { os.Exit(run()) }

func run() int {
	var puts []string
	var o machine.Options
	flag.Func("put", "FILE=PATH: copy a file of the host to a path in the machine", func(s string) error {
		if !strings.Contains(s, "=/") {
			return errors.New("want FILE=/PATH")
		}
		puts = append(puts, s)
		return nil
	})
	flag.IntVar(&o.Memory, "memory", 0, "MiB of memory (default 4096)")
	flag.BoolVar(&o.Cold, "cold", false, "boot the machine instead of restoring one that has booted")
	flag.Func("kind", "node, selinux or arm64", func(s string) error {
		o.Kind = machine.Kind(s)
		return nil
	})
	flag.StringVar(&o.Kernel, "kernel", "", "kernel arguments for security modules")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code := 0
	err := testbed.Run(ctx, "vm", os.Stderr, func(t testbed.T) {
		begin := time.Now()
		m := machine.Start(t, o)
		fmt.Fprintf(os.Stderr, "up after %.1f s, %.0f times slower than a host\n", time.Since(begin).Seconds(), m.Slowness)
		for _, put := range puts {
			from, to, _ := strings.Cut(put, "=/")
			m.Put(t, from, "/"+to)
		}
		command := flag.Args()
		if len(command) == 0 {
			command = []string{"uname", "-a"}
		}
		c := m.Command(command...)
		c.Stdin, c.Stdout, c.Stderr = nil, os.Stdout, os.Stderr
		c.Env = []string{fmt.Sprintf("BERTH_TEST_SLOWNESS=%.1f", m.Slowness)}
		err := c.Run(t.Context())
		var exit *machine.ExitError
		switch {
		case errors.As(err, &exit):
			code = exit.Code
			fmt.Fprintln(os.Stderr, err)
		case err != nil:
			t.Fatalf("%v", err)
		}
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}
