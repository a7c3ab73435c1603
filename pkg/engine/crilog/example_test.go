package crilog_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-cri/berth/pkg/engine/crilog"
)

func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "0.log")
	log, err := crilog.Open(path, crilog.Options{})
	if err != nil {
		panic(err)
	}
	out := log.Stream(crilog.Stdout)
	fmt.Fprint(out, "hello, ") // chunks need not be lines
	fmt.Fprint(out, "world\nhalf a line")
	out.Close()
	log.Close()
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, " ")
		fmt.Print(rest)
	}
	// Output:
	// stdout F hello, world
	// stdout P half a line
}
