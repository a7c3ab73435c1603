// Command benchrouter measures what it costs that a pod lives in another CRI
// daemon behind berth: the same calls are made of that daemon directly and
// through berth, in turns.
//
//	make build runtimes bin/containerd
//	go run ./integration/benchrouter [--calls N] [--containers N] [--pods N] [--polls N]
//
// What every number is, is in docs/benchmarks.md. It needs root, and leaves
// nothing behind, Ctrl-C or not.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/berth-cri/berth/integration/testbed"
)

// options are the command line.
type options struct {
	calls, containers, pods, polls int
}

func main() {
	for variable, serve := range hops {
		if from, to, is := strings.Cut(os.Getenv(variable), ":"); is {
			fmt.Fprintf(os.Stderr, "benchrouter: %s: %v\n", variable, serve(from, to))
			os.Exit(1)
		}
	}
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchrouter:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	r := &report{}
	err = testbed.Run(ctx, "benchrouter", os.Stderr, func(t testbed.T) {
		r.hops(t, o)
		r.memory(t, o)
	})
	stop()
	if writeErr := r.write(os.Stdout); err == nil {
		err = writeErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "benchrouter:", err)
		os.Exit(1)
	}
}

func parse(arguments []string) (options, error) {
	flags := flag.NewFlagSet("benchrouter", flag.ExitOnError)
	o := options{}
	flags.IntVar(&o.calls, "calls", 4000, "unary calls of each kind")
	flags.IntVar(&o.containers, "containers", 500, "containers on the node, half of them in each daemon")
	flags.IntVar(&o.pods, "pods", 1000, "pods whose weight in berth's memory is measured")
	flags.IntVar(&o.polls, "polls", 3600, "rounds of a polling kubelet after which memory is compared")
	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.calls < 100 || o.containers < 2 || o.pods < 1 || o.polls < 1 {
		return o, fmt.Errorf("--calls must be at least 100, --containers 2, --pods and --polls 1")
	}
	return o, nil
}
