package criu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/namespaces"
	"github.com/berth-cri/berth/pkg/engine/pod"
)

// CRIU lets nothing through to the pod that it writes a container of, until it is done with it.
// Killed before, be it by its deadline, it leaves the pod without a network.
const (
	// chain is CRIU's in the tables of iptables, and how its own tables of nftables begin.
	chain         = "CRIU"
	unlockTimeout = 20 * time.Second
)

// atWork is the file that is there from before CRIU is called until it has cleaned up, in the record
// of a container that stands still.
func atWork(l pod.Layout, c *pod.Container) string {
	return filepath.Join(l.FrozenDir(c.ID()), "network")
}

// unlock gives a pod the network back that a CRIU which was killed had locked, if it was at
// work on this container. It must be gone.
func unlock(ctx context.Context, l pod.Layout, c *pod.Container) error {
	if _, err := os.Stat(atWork(l, c)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ns := c.Sandbox.Status().Namespaces.Net
	if ns == "" { // the node's, which CRIU does not lock
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unlockTimeout)
	defer cancel()
	if err := namespaces.Do(ns, func() error { return unlockHere(ctx) }); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("the pod's network may be locked by a CRIU that was killed; recreate the pod: %w", err)
	}
	return nil
}

// unlockHere does so in this thread's network. A program that is not there cannot have locked
// it: CRIU calls the same.
func unlockHere(ctx context.Context) error {
	var all error
	for program, list := range map[string][]string{"iptables": {"-w", "-S"}, "ip6tables": {"-w", "-S"}, "nft": {"list", "tables"}} {
		path, err := exec.LookPath(program)
		if err != nil {
			continue
		}
		listed, err := output(ctx, path, list...)
		if err != nil {
			all = errors.Join(all, err)
			continue
		}
		for _, args := range unlocking(program, listed) {
			_, err := output(ctx, path, args...)
			all = errors.Join(all, err)
		}
	}
	return all
}

func output(ctx context.Context, path string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(path), strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// unlocking are the calls that remove what CRIU has put into what a program lists.
func unlocking(program, listed string) (calls [][]string) {
	found := false
	for line := range strings.Lines(listed) {
		words := strings.Fields(line)
		switch {
		case program == "nft":
			if len(words) == 3 && words[0] == "table" && strings.HasPrefix(words[2], chain+"-") {
				calls = append(calls, []string{"delete", "table", words[1], words[2]})
			}
		case len(words) == 4 && words[0] == "-A" && words[2] == "-j" && words[3] == chain:
			calls = append(calls, []string{"-w", "-D", words[1], "-j", chain})
		case len(words) == 2 && words[0] == "-N" && words[1] == chain:
			found = true
		}
	}
	if found {
		calls = append(calls, []string{"-w", "-F", chain}, []string{"-w", "-X", chain})
	}
	return calls
}
