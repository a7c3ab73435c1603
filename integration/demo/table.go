package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/berth-cri/berth/pkg/config"
	"github.com/berth-cri/berth/pkg/handler"
)

// printTable writes the table.
func printTable(out io.Writer, rows []row, verbose bool) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer w.Flush()
	fmt.Fprintln(w, "HANDLER\tRUNTIME\tVERSION\tUNAME -R\t/PROC/VERSION\tFIRST POD\tNEXT POD\tLOG LINE")
	for _, r := range rows {
		if r.err != nil {
			reason, _, _ := strings.Cut(r.err.Error(), "\n")
			fmt.Fprintf(w, "%s\t%s\t%s\tfailed: %s\n", r.handler, r.runtime, r.version, short(reason, 100, verbose))
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.handler, r.runtime, short(r.version, 24, verbose), r.release,
			short(r.kernel, 44, verbose), milliseconds(r.first), milliseconds(r.next), r.logLine)
	}
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }

// short cuts text at the length, in characters, unless all is wanted.
func short(text string, length int, all bool) string {
	characters := []rune(text)
	if all || len(characters) <= length {
		return text
	}
	return string(characters[:length-1]) + "…"
}

// runtimeOf returns the binary of a handler, found as berth finds it, and the
// version that it says it has.
func runtimeOf(ctx context.Context, name string) (path, version string) {
	for _, definition := range config.Discover(config.SearchDirs()) {
		if definition.Name == name {
			return definition.Path, versionOf(ctx, definition)
		}
	}
	return "?", "?"
}

func versionOf(ctx context.Context, definition *handler.Definition) string {
	flag := "--version"
	if definition.Type == handler.Shim {
		flag = "-v"
	}
	output, err := exec.CommandContext(ctx, definition.Path, flag).Output()
	if err != nil {
		return "?"
	}
	return parseVersion(string(output))
}

// parseVersion finds the version in what runtimes print: "runc version 1.5.2",
// or a line "Version: v2.4.2".
func parseVersion(output string) string {
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(line)
		if _, version, found := strings.Cut(line, "version "); found {
			return version
		}
		if version, found := strings.CutPrefix(line, "Version:"); found {
			return strings.TrimSpace(version)
		}
	}
	return "?"
}
