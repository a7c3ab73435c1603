// Command kata imitates Kata Containers' shim in the points in which it differs
// from containerd's runc shim. Kata needs hardware virtualisation, which machines
// that run tests do not have; the rest of this program is containerd's own
// (pkg/shim, and the task service of its runc shim), and the containers are runc's.
//
// A comment at each of these points names the source of the behaviour: a path below src/runtime of
// github.com/kata-containers/kata-containers, unless stated otherwise. The settings are in the type
// Kata of package shims.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/pkg/shim"
)

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "boot":
			exit(boot(os.Args[2:]))
		case "machine":
			exit(machine(os.Args[2:]))
		case "-info":
			// Kata's flags are those of containerd 1.x, which does not have -info.
			exit(fmt.Errorf("flag provided but not defined: -info"))
		case "-v", "--version":
			// cmd/containerd-shim-kata-v2/main.go
			_, err := os.Stdout.WriteString("Kata Containers containerd shim (Golang): id: \"" + name + "\", version: 3.2.0, commit: none\n")
			exit(err)
		}
	}
	shim.RunShim(context.Background(), manager{})
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(0)
}
