package probe

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/config/hostfiles"
)

// Newer releases of gVisor install these files beside their executable. Handlers name the
// companions of other runtimes by the key companions.
const (
	// sidecarFlag is accepted only by releases that have companions.
	sidecarFlag = "--sidecar-usage-policy=STRICT"
	sidecarDir  = "gvisor-bin"
	// sentry and prewarmer are the programs in sidecarDir that run for each pod.
	sentry, prewarmer = "gvisor_sentry", "gvisor-sentry-prewarmer"
)

func needs(ctx context.Context, path string, rt *Runtime) ([]string, error) {
	if rt.Name != Runsc {
		return nil, nil
	}
	if isScript(path) {
		if _, err := beside(path, []string{sidecarDir}); err != nil {
			return nil, nil //nolint:nilerr // its companions are elsewhere
		}
	}
	if _, err := run(ctx, path, sidecarFlag, "--version"); err != nil {
		return nil, unlessExit(ctx, err) // a release before companions does not know the flag
	}
	return []string{sidecarDir}, nil
}

// isScript reports whether a program is a wrapper script: the companions may then be beside the
// program that the script calls.
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

// identify sets the identities of the runtime, given those before the query, and fails unless all
// companions are usable.
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
	return checkCompanions(ctx, r, id)
}

// checkCompanions fails if a required program is missing or not executable, if the sentry is of
// another release than the runtime, or if users other than root can change a companion.
func checkCompanions(ctx context.Context, rt *Runtime, id Identity) error {
	for _, c := range id.Companions {
		if who := hostfiles.Untrusted(c.Identity.Path); who != "" {
			return fmt.Errorf("a companion of %s: %s: %w", id.Path, who, errdefs.ErrUnavailable)
		}
	}
	if len(rt.Needs) == 0 {
		return nil
	}
	there := map[string]string{}
	for _, c := range id.Companions {
		there[c.Name] = c.Identity.Path
	}
	for _, name := range []string{sentry, prewarmer} {
		path, ok := there[filepath.Join(sidecarDir, name)]
		if !ok {
			return incomplete(rt, id, name+" is missing")
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm()&0o111 == 0 {
			return incomplete(rt, id, name+" cannot be executed")
		}
	}
	out, err := run(ctx, there[filepath.Join(sidecarDir, sentry)], "--version")
	if err != nil {
		return err
	}
	if m := firstLine.FindStringSubmatch(string(out)); len(m) == 3 && m[2] != rt.Version {
		return incomplete(rt, id, sentry+" is of release "+m[2])
	}
	return nil
}

func incomplete(rt *Runtime, id Identity, why string) error {
	return fmt.Errorf("%s %s needs %s of the same release beside %s, but %s; install all files of one release side by side: %w",
		rt.Name, rt.Version, strings.Join(rt.Needs, ", "), id.Path, why, errdefs.ErrUnavailable)
}
