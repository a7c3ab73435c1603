package crilog_test

import (
	"errors"
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
	for _, chunk := range []string{"hello, ", "world\nhalf a line"} { // a write can end within a line
		if _, err := out.Write([]byte(chunk)); err != nil {
			panic(err)
		}
	}
	if err := errors.Join(out.Close(), log.Close()); err != nil {
		panic(err)
	}
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		_, rest, _ := strings.Cut(line, " ")
		fmt.Print(rest)
	}
	// Output:
	// stdout F hello, world
	// stdout P half a line
}
