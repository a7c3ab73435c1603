// Command kata imitates the shim of Kata Containers. Tests cannot run the real shim, because it
// needs hardware virtualisation. This program uses the code of containerd's runc shim (pkg/shim and
// the task service), and runc runs the containers. The program differs from the runc shim in the
// same points as Kata's shim.
//
// A comment at each of these points names the source of the behaviour. The source is a path below
// src/runtime of github.com/kata-containers/kata-containers, unless stated otherwise. The settings
// are in the type Kata of package shims.
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
			// Kata's shim has the flags of containerd 1.x. The flag -info does not exist there.
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
