// Command wasm imitates the shims of runwasi (https://github.com/containerd/runwasi), which are in
// Rust: it makes the same calls to the daemon that starts it, but runs modules with wazero. The
// rest is containerd's own library (pkg/shim, and the task service of its runc shim), and the
// containers are runc's.
//
// Comments name the source of imitated behaviour: a path below crates of runwasi.
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
		case moduleCommand:
			os.Exit(runModule(os.Args[2:]))
		case "-info":
			fmt.Fprintln(os.Stderr, "flag provided but not defined: -info")
			os.Exit(2)
		case "-v", "--version":
			// containerd-shimkit/src/sandbox/cli.rs, shim_main
			_, err := fmt.Fprintf(os.Stdout, "%s:\n  Runtime: %s\n  Version: 0.0.0\n  Revision: none\n\n", os.Args[0], engine)
			if err != nil {
				os.Exit(2)
			}
			os.Exit(0)
		}
	}
	shim.RunShim(context.Background(), manager{})
}
