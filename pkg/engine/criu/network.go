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

// CRIU blocks the network of a pod while it writes one of the pod's containers. If CRIU is killed
// meanwhile, for example at its deadline, the pod stays without a network.
const (
	// chain is CRIU's chain in the tables of iptables, and the prefix of its own tables of
	// nftables.
	chain         = "CRIU"
	unlockTimeout = 20 * time.Second
)

// inProgressFile names a file that exists in the record of a frozen container from before the call
// of CRIU until CRIU has cleaned up.
func inProgressFile(l pod.Layout, c *pod.Container) string {
	return filepath.Join(l.FrozenDir(c.ID()), "network")
}

// unlock unblocks a pod's network if a CRIU was killed while it worked on this container. CRIU must
// have exited.
func unlock(ctx context.Context, l pod.Layout, c *pod.Container) error {
	if _, err := os.Stat(inProgressFile(l, c)); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	ns := c.Sandbox.Status().Namespaces.Net
	if ns == "" { // the node's network, which CRIU does not block
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unlockTimeout)
	defer cancel()
	if err := namespaces.Do(ns, func() error { return unlockHere(ctx) }); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("the pod's network may be locked by a CRIU that was killed; recreate the pod: %w", err)
	}
	return nil
}

// unlockHere unblocks the network of this thread. If a program is missing, CRIU has not used it
// either.
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

// unlocking returns the calls that remove CRIU's entries from a program's list.
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
