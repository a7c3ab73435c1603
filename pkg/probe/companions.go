package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// known is what a runtime that berth knows has beside its executable.
type known struct {
	// asked is a flag that only the releases know which have companions.
	asked string
	// dir is the companion, and programs are what runs in it for each pod.
	dir      string
	programs []string
	// sameRelease is the program whose version must be the runtime's; empty is none.
	sameRelease string
}

// companions are those of known runtimes, by the name that a runtime gives itself. A
// handler names others by its key companions.
var companions = map[string]known{
	Runsc: {
		asked: "--sidecar-usage-policy=STRICT", dir: "gvisor-bin",
		programs: []string{"gvisor_sentry", "gvisor-sentry-prewarmer"}, sameRelease: "gvisor_sentry",
	},
}

func needs(ctx context.Context, path string, rt *Runtime) ([]string, error) {
	k, ok := companions[rt.Name]
	if !ok || isScript(path) && !hasBeside(path, k.dir) {
		return nil, nil
	}
	_, err := run(ctx, path, k.asked, "--version")
	var exit *exec.ExitError
	switch {
	case err == nil:
		return []string{k.dir}, nil
	case ctx.Err() != nil, Transient(err), !errors.As(err, &exit):
		return nil, err
	}
	return nil, nil // a release before companions does not know the flag
}

// isScript reports whether a program is a wrapper: what it calls has its companions beside
// itself.
func isScript(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	start := make([]byte, 2)
	_, err = io.ReadFull(f, start)
	return err == nil && string(start) == "#!"
}

func hasBeside(path, name string) bool {
	_, err := beside(path, []string{name})
	return err == nil
}

// identify notes what the runtime consists of, given what was there before it was asked,
// and fails unless all of that is usable.
func (r *Runtime) identify(ctx context.Context, path string, before []Identity) error {
	last := len(before) - 1
	id, err := before[last].with(r.Needs)
	if err != nil {
		return err
	}
	r.Path, r.Identity = path, before[0]
	if last == 0 {
		r.Identity = id
	} else {
		r.Driven = &id
	}
	return whole(ctx, r, id)
}

// whole fails unless the companions of a known runtime are all there, can be run and are
// of its release. No user but root may be able to change any companion.
func whole(ctx context.Context, rt *Runtime, id Identity) error {
	for _, c := range id.Companions {
		if who := hostfiles.Untrusted(c.Identity.Path); who != "" {
			return fmt.Errorf("a companion of %s: %s: %w", id.Path, who, errdefs.ErrUnavailable)
		}
	}
	if len(rt.Needs) == 0 {
		return nil
	}
	k := companions[rt.Name]
	there := map[string]string{}
	for _, c := range id.Companions {
		there[c.Name] = c.Identity.Path
	}
	for _, name := range k.programs {
		path, ok := there[filepath.Join(k.dir, name)]
		if !ok {
			return incomplete(rt, id, name+" is missing")
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm()&0o111 == 0 {
			return incomplete(rt, id, name+" cannot be executed")
		}
	}
	if k.sameRelease == "" {
		return nil
	}
	out, err := run(ctx, there[filepath.Join(k.dir, k.sameRelease)], "--version")
	if err != nil {
		return err
	}
	if m := firstLine.FindStringSubmatch(string(out)); len(m) == 3 && m[2] != rt.Version {
		return incomplete(rt, id, fmt.Sprintf("%s is of release %s", k.sameRelease, m[2]))
	}
	return nil
}

func incomplete(rt *Runtime, id Identity, why string) error {
	return fmt.Errorf("%s %s needs %s of the same release beside %s, but %s; install all files of one release side by side: %w",
		rt.Name, rt.Version, strings.Join(rt.Needs, ", "), id.Path, why, errdefs.ErrUnavailable)
}
