//go:build berth_failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

var (
	armed       = os.Getenv("BERTH_FAILPOINT")
	holds, held = parse(os.Getenv("BERTH_HOLD"))
)

// parse parses DIRECTORY:PLACE,PLACE...
func parse(text string) (places []string, directory string) {
	directory, names, ok := strings.Cut(text, ":")
	if !ok {
		return nil, ""
	}
	return strings.Split(names, ","), directory
}

// Hit kills the daemon if name is the armed place. If name is a holding place, it blocks the first
// caller forever and creates a file of that name.
func Hit(name string) {
	if name == armed {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	if !slices.Contains(holds, name) {
		return
	}
	f, err := os.OpenFile(filepath.Join(held, name), os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return // another caller is blocked there
	}
	_ = f.Close()
	select {}
}
