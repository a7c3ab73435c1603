// Command soak runs thousands of short pods under runc, crun and gVisor, with execs, image pulls
// and removals, reloads, and kills of the daemon and of supervisors. It fails if something grows:
// memory, goroutines, descriptors, files, mounts, namespaces, cgroups, firewall rules, links,
// addresses or processes.
//
//	make soak
//	make soak SOAK_ARGS='-lives 300'
//
// The Makefile runs it in its own mount and network namespaces: all their mounts, links, rules and
// named network namespaces count.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/berth-cri/berth/integration/testbed"
)

func main() {
	lives := flag.Int("lives", 10_000, "pods to run and remove")
	flag.Parse()
	// The warm-up is a tenth, and must have a life of each kind.
	if *lives < 100 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "soak: -lives must be at least 100; no other arguments are allowed")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := testbed.Run(ctx, "soak", os.Stderr, func(t testbed.T) { run(t, *lives) })
	if ctx.Err() != nil {
		err = errors.Join(errors.New("interrupted"), err)
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}
