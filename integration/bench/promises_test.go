package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/berth-cri/berth/integration/testbed"
)

// TestPromises runs pods, and fails if they cost more than docs/promises.md promises.
func TestPromises(t *testing.T) {
	page, err := os.ReadFile("../../docs/promises.md")
	testbed.Must(t, err)
	r := compare(t, options{runs: 1, pods: 1, image: 1e6, handlers: comparableRuntimes, only: []string{groupCounts}, alone: true})
	for i, handler := range r.Handlers {
		for _, e := range handler.Numbers {
			promised := promise(t, string(page), e.Name, i)
			if e.Berth == nil || *e.Berth == 0 || *e.Berth > promised {
				t.Errorf("%s: %s: %v, promised %v", handler.Handler, e.Name, e.Samples, promised)
			}
		}
	}
	testbed.Same(t, len(r.Handlers), len(comparableRuntimes), "the number of runtimes is")
}

// promise returns the number in a row of the page's table, in the column of a runtime.
func promise(t *testing.T, page, row string, column int) float64 {
	t.Helper()
	cells := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(row) + ` \| (\d+) \| (\d+) \|`).FindStringSubmatch(page)
	if cells == nil {
		t.Fatalf("docs/promises.md promises nothing for %q", row)
	}
	n, err := strconv.ParseFloat(cells[1+column], 64)
	testbed.Must(t, err)
	return n
}
