package config_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-cri/berth/pkg/config"
)

// Load reports all mistakes together, each with its place.
func ExampleLoad() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "config.toml")
	text := "version = 1\n\n[server]\nsockt = \"/run/berth.sock\"\n\n[log]\nlevel = \"loud\"\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		panic(err)
	}
	_, err = config.Load(config.Options{File: file, VendorDir: dir})
	problems, _ := errors.AsType[config.Problems](err)
	for _, p := range problems {
		fmt.Println(p.Key, p.Message)
	}
	// Output:
	// server.sockt unknown key
	// log.level "loud" must be "trace", "debug", "info", "warn" or "error"
}
