// Command bench compares berth with containerd. The same client sends both the same calls,
// alternately, with the same runtime binary, kind of network and image. It prints medians and
// ratios as a Markdown table.
//
//	make build runtimes bin/containerd
//	go run ./integration/bench [--runs N] [--pods N] [--quick] [--handlers runc,crun] [--only pod,memory] [--json]
//	go run ./integration/bench --node [--runs N] [--pods N] [--handlers runc,crun] [--json]
//
// docs/benchmarks.md explains every number. The command needs root, and leaves nothing behind, even
// after Ctrl-C.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-cri/berth/integration/testbed"
)

// options are the command line.
type options struct {
	runs     int
	pods     int
	image    int // bytes of the large image, unpacked
	handlers []string
	only     []string
	polling  time.Duration // how long idle CPU is measured
	node     bool
	json     bool
	alone    bool // without containerd
}

// comparableRuntimes are the runtimes that containerd's runc shim can run. With containerd, runsc
// needs its own shim, so the comparison would be of shims.
var comparableRuntimes = []string{testbed.Runc, testbed.Crun}

func main() {
	o, err := parse(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	measure := compare
	if o.node {
		measure = nodes
	}
	var report report
	err = testbed.Run(ctx, "bench", os.Stderr, func(t testbed.T) { report = measure(t, o) })
	interrupted := ctx.Err() != nil
	stop()
	if interrupted {
		fmt.Fprintln(os.Stderr, "bench: interrupted; cleaned up")
		os.Exit(130)
	}
	if writeErr := report.write(os.Stdout, o.json); writeErr != nil && err == nil {
		err = writeErr
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func parse(arguments []string) (options, error) {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	runs := flags.Int("runs", 15, "rounds of what is measured on one pod; what needs all pods has a fifth of them")
	pods := flags.Int("pods", 40, "pods of a full node")
	image := flags.Int("image-mb", 689, "size of the large image of cold pods, unpacked")
	quick := flags.Bool("quick", false, "3 rounds, 8 pods, an image of 100 MB, 5 s of polling, unless said otherwise: to see that it works")
	handlers := flags.String("handlers", testbed.Runc, "runtimes to compare under: "+strings.Join(comparableRuntimes, ", "))
	only := flags.String("only", "", "measure these only: "+strings.Join(groups, ","))
	node := flags.Bool("node", false, "measure pods of a kubelet that are created all at once, on a plain and on a throttled disk")
	asJSON := flags.Bool("json", false, "print JSON with every sample instead of a table")
	if err := flags.Parse(arguments); err != nil {
		return options{}, err
	}
	o := options{
		runs: *runs, pods: *pods, image: *image * 1e6, polling: 20 * time.Second, json: *asJSON, node: *node,
		handlers: split(*handlers), only: split(*only),
	}
	if *quick {
		o.polling = 5 * time.Second
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		if !given["runs"] {
			o.runs = 3
		}
		if !given["pods"] {
			o.pods = 8
		}
		if !given["image-mb"] {
			o.image = 100e6
		}
	}
	return o, o.check(flags.Args())
}

func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

func (o options) check(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q", rest[0])
	}
	if o.runs < 1 || o.pods < 1 || o.pods > 500 {
		return fmt.Errorf("--runs must be at least 1, and --pods from 1 to 500 (the pods' subnet has no more addresses)")
	}
	if o.node && o.pods > 110 {
		return fmt.Errorf("--node: --pods must be at most 110, a kubelet's limit")
	}
	if o.image < 1e6 || o.image > 10e9 {
		return fmt.Errorf("--image-mb must be from 1 to 10000: the image is kept in memory")
	}
	if len(o.handlers) == 0 {
		return fmt.Errorf("--handlers must name a runtime")
	}
	for _, handler := range o.handlers {
		if !slices.Contains(comparableRuntimes, handler) {
			return fmt.Errorf("--handlers: %q is not one of %s", handler, strings.Join(comparableRuntimes, ", "))
		}
	}
	for _, group := range o.only {
		if !slices.Contains(groups, group) {
			return fmt.Errorf("--only: %q is not one of %s", group, strings.Join(groups, ", "))
		}
	}
	return nil
}

// wants reports whether a group is selected.
func (o options) wants(group string) bool {
	return len(o.only) == 0 || slices.Contains(o.only, group)
}

// wantsAny reports whether any of the groups is selected.
func (o options) wantsAny(groups ...string) bool { return slices.ContainsFunc(groups, o.wants) }

// fleetRounds is the number of rounds of the measurements that need all pods.
func (o options) fleetRounds() int { return max(1, o.runs/5) }
