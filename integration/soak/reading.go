package main

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/integration/testbed"
)

// Kinds of what is counted, besides those of testbed.Snapshot.
const (
	descriptors           = "descriptor of the daemon"
	supervisorDescriptors = "descriptor of supervisors"
	files                 = "file"
	namespaces            = "network namespace"
	elements              = "nftables"
)

// Amounts.
const (
	goroutines       = "goroutines"
	heap             = "heap of the daemon" // bytes at which a collection starts, a multiple of the live heap
	anonymous        = "anonymous memory of the daemon"
	supervisorMemory = "anonymous memory of supervisors"
	fileSizes        = "bytes in files"
	series           = "series of metrics"
)

// tolerated is how much more than after the warm-up an amount may be. Memory is returned to the
// kernel late, and logs of supervisors are rotated at 1 MiB.
var tolerated = map[string]float64{
	goroutines:       4,
	heap:             4 << 20,
	anonymous:        8 << 20,
	supervisorMemory: 4 << 20,
	fileSizes:        16 << 20,
	series:           100, // for codes and reasons that the warm-up did not have
}

// reading is what a node has at one moment.
type reading struct {
	names   map[string][]string
	amounts map[string]float64
}

func (r reading) String() string {
	const mega = 1 << 20
	text := fmt.Sprintf("daemon %.1f MiB, collects at %.1f MiB, %.0f goroutines; supervisors %.1f MiB; %.1f MiB in files; %.0f series",
		r.amounts[anonymous]/mega, r.amounts[heap]/mega, r.amounts[goroutines], r.amounts[supervisorMemory]/mega, r.amounts[fileSizes]/mega, r.amounts[series])
	kinds := []string{}
	for kind, names := range r.names {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, len(names)))
	}
	slices.Sort(kinds)
	return text + "; " + strings.Join(kinds, ", ")
}

// growth returns what a later reading has more of, with a sample of it.
func (r reading) growth(later reading) []string {
	var grown []string
	for kind, names := range later.names {
		if before := len(r.names[kind]); len(names) > before {
			grown = append(grown, fmt.Sprintf("%s: %d, after the warm-up %d; new are:\n  %s",
				kind, len(names), before, strings.Join(sample(r.names[kind], names), "\n  ")))
		}
	}
	for kind, limit := range tolerated {
		if before, after := r.amounts[kind], later.amounts[kind]; after > before+limit {
			grown = append(grown, fmt.Sprintf("%s: %.0f, after the warm-up %.0f; %.0f more are tolerated", kind, after, before, limit))
		}
	}
	slices.Sort(grown)
	return grown
}

var digits = regexp.MustCompile(`\d+`)

// sample returns names that are in after and not in before. Names that differ only in numbers, such
// as those of sockets, are equal.
func sample(before, after []string) []string {
	known := map[string]int{}
	for _, name := range before {
		known[digits.ReplaceAllString(name, "N")]++
	}
	var added []string
	for _, name := range after {
		if known[digits.ReplaceAllString(name, "N")]--; known[digits.ReplaceAllString(name, "N")] < 0 {
			added = append(added, name)
		}
	}
	const most = 20
	return added[:min(most, len(added))]
}

// settleTime is longer than the minute for which an idle supervisor waits.
const settleTime = 90 * time.Second

// settled reads the node when nothing has grown since base, or after settleTime. It fails for what
// has grown. Without base it waits a few seconds.
func (s *soak) settled(t testbed.T, base *reading) reading {
	t.Helper()
	const pause = 5 * time.Second
	for deadline := time.Now().Add(settleTime); ; {
		time.Sleep(pause)
		now := s.read(t)
		if base == nil {
			return now
		}
		grown := base.growth(now)
		if len(grown) == 0 {
			return now
		}
		if time.Now().After(deadline) {
			for _, line := range grown {
				t.Errorf("grown: %s", line)
			}
			if now.amounts[goroutines] > base.amounts[goroutines]+tolerated[goroutines] {
				t.Errorf("goroutines by the function that has started them:\n%s", s.abort(t))
			}
			return now
		}
	}
}

// abort has the Go runtime of the daemon write all stacks and exit. It returns how many goroutines
// each function has started.
func (s *soak) abort(t testbed.T) string {
	t.Helper()
	testbed.Mustf(t, unix.Kill(s.PID(), unix.SIGQUIT), "abort the daemon")
	s.Wait(t, time.Minute)
	started := map[string]int{}
	for _, match := range regexp.MustCompile(`created by (\S+)`).FindAllStringSubmatch(s.Log(), -1) {
		started[match[1]]++
	}
	var lines []string
	for function, n := range started {
		lines = append(lines, fmt.Sprintf("  %4d %s", n, function))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// read counts everything.
func (s *soak) read(t testbed.T) reading {
	t.Helper()
	r := reading{names: map[string][]string{}, amounts: map[string]float64{}}
	for kind, names := range s.Snapshot(t) {
		r.names[string(kind)] = names
	}
	s.readDaemon(t, r)
	for _, pid := range s.supervisors(t) {
		r.names[supervisorDescriptors] = append(r.names[supervisorDescriptors], open(pid)...)
		r.amounts[supervisorMemory] += anonymousOf(t, pid)
	}
	for _, dir := range []string{s.Root, s.Dir} {
		testbed.Mustf(t, filepath.WalkDir(dir, s.counter(r)), "list the files in %s", dir)
	}
	mounts, err := mountinfo.GetMounts(nil)
	testbed.Mustf(t, err, "list mounts")
	r.names[string(testbed.Mounts)] = nil
	for _, mount := range mounts {
		r.names[string(testbed.Mounts)] = append(r.names[string(testbed.Mounts)], mount.Mountpoint)
	}
	entries, err := os.ReadDir("/run/netns")
	testbed.Mustf(t, err, "list network namespaces")
	for _, entry := range entries {
		r.names[namespaces] = append(r.names[namespaces], entry.Name())
	}
	links, err := netlink.LinkList()
	testbed.Mustf(t, err, "list links")
	r.names[string(testbed.Ports)] = nil
	for _, link := range links {
		r.names[string(testbed.Ports)] = append(r.names[string(testbed.Ports)], link.Attrs().Name)
	}
	ruleset, err := exec.CommandContext(t.Context(), "nft", "list", "ruleset").Output()
	testbed.Mustf(t, err, "list nftables")
	r.names[elements] = strings.FieldsFunc(string(ruleset), func(c rune) bool { return c == '\n' || c == ',' })
	return r
}

// counter returns a function that adds files to r. It does not enter mounts.
func (s *soak) counter(r reading) fs.WalkDirFunc {
	return func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed during the walk
		}
		if err != nil {
			return err
		}
		r.names[files] = append(r.names[files], path)
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() && path != s.LogFile {
			r.amounts[fileSizes] += float64(info.Size())
		}
		if mounted, err := mountinfo.Mounted(path); err == nil && mounted && entry.IsDir() {
			return fs.SkipDir
		}
		return nil
	}
}

// metricsAddress is berth's alone, because the network namespace is.
const metricsAddress = "127.0.0.1:9091"

// readDaemon reads the daemon's memory, goroutines and descriptors after two garbage collections.
func (s *soak) readDaemon(t testbed.T, r reading) {
	t.Helper()
	var first float64
	for collections := -1.0; collections < first+2; {
		scraped := scrape(t)
		collections = scraped["go_gc_duration_seconds_count"]
		if first == 0 {
			first = collections
		}
		r.amounts[goroutines], r.amounts[heap] = scraped["go_goroutines"], scraped["go_memstats_next_gc_bytes"]
		r.amounts[series] = float64(len(scraped))
	}
	r.amounts[anonymous] = anonymousOf(t, s.PID())
	r.names[descriptors] = open(s.PID())
}

// scrape returns the daemon's metrics, by their names and labels.
func scrape(t testbed.T) map[string]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+metricsAddress+"/metrics", http.NoBody)
	testbed.Mustf(t, err, "read metrics")
	request.Close = true // a kept connection would count
	response, err := http.DefaultClient.Do(request)
	testbed.Mustf(t, err, "read metrics")
	defer response.Body.Close()
	metrics := map[string]float64{}
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		line := lines.Text()
		if number, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			metrics[line[:strings.LastIndexByte(line, ' ')]] = number
		}
	}
	return metrics
}

// open returns what the descriptors of a process lead to.
func open(pid int) []string {
	links, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid)) // the pattern is valid
	var targets []string
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil {
			targets = append(targets, target)
		}
	}
	return targets
}

// anonymousOf returns a process's anonymous memory in bytes.
func anonymousOf(t testbed.T, pid int) float64 {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0 // it has exited
	}
	_, rest, _ := strings.Cut(string(rollup), "\nAnonymous:")
	kilobytes, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
	testbed.Mustf(t, err, "memory of process %d", pid)
	return kilobytes * 1024
}
