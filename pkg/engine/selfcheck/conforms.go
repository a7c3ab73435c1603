package selfcheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/binaries"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/procfs"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/printable"
	"github.com/berth-cri/berth/pkg/probe/conform"
)

// seccompOf returns the profile of a self-check pod: the default one, if the handler promises that
// it is in effect.
func seccompOf(d *handler.Definition) *runtimeapi.SecurityProfile {
	if !slices.Contains(d.Conforms, string(conform.SharedKernel)) {
		return nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// conforms fails if a running self-check pod does not match its handler's promises. It also fails
// if nothing in the pod can check them.
func (b *Pods) conforms(ctx context.Context, client *shim.Client, s *pod.Sandbox) error {
	d := s.Spec().Definition
	if len(d.Conforms) == 0 {
		return nil
	}
	rt, err := b.binaries.Prober.Probe(ctx, b.binaries.Runtimes.Of(s.Spec()))
	if err != nil {
		return err
	}
	f := conform.Facts{
		Isolation: b.capabilities.Table(ctx, d, rt, nil).Isolation,
		Modules:   rt.Wasm && d.Platform == handler.PlatformWasm,
	}
	if f.Node, err = kernel(); err != nil {
		return err
	}
	if slices.ContainsFunc(d.Conforms, func(name string) bool { return conform.LooksInside(conform.Set(name)) }) {
		if f.Seen, err = b.inspect(ctx, client, s); err != nil {
			return uncheckable(d.Conforms, err)
		}
	}
	var all []string
	for _, name := range d.Conforms {
		if breaches := conform.Breaches(conform.Set(name), f); len(breaches) > 0 {
			all = append(all, fmt.Sprintf("the handler does not conform to %s: %s", name, strings.Join(breaches, ", and ")))
		}
	}
	if len(all) == 0 {
		return nil
	}
	return handler.AttributeToRuntime(errors.New(printable.Line(strings.Join(all, "; "))))
}

// uncheckable returns the error of a pod that cannot check the promises. Only the inability to run
// a second program is attributed to the handler. Other errors may be transient (see
// probe.Transient), and count if they persist.
func uncheckable(promises []string, err error) error {
	err = fmt.Errorf("the handler does not conform to %s: what its pods see is not known: %w", strings.Join(promises, ", "), err)
	if errdefs.IsNotImplemented(err) {
		return handler.AttributeToRuntime(err)
	}
	return err
}

func kernel() (conform.Kernel, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return conform.Kernel{}, fmt.Errorf("uname: %w", err)
	}
	boot, err := procfs.BootID()
	return conform.Kernel{Release: unix.ByteSliceToString(name.Release[:]), Version: unix.ByteSliceToString(name.Version[:]), BootID: boot}, err
}

// inspect runs a program in a self-check pod that reports what it sees.
func (b *Pods) inspect(ctx context.Context, client *shim.Client, s *pod.Sandbox) (*conform.Seen, error) {
	got, err := b.exec(ctx, client, s, "/"+binaries.LookName)
	switch {
	case err != nil && s.Machine:
		return nil, fmt.Errorf("%w (its first container may be the virtual machine's own)", err)
	case err != nil:
		return nil, err
	case got.GetExitCode() != 0:
		return nil, fmt.Errorf("the program that inspects the pod exited with status %d: %s", got.GetExitCode(), strings.TrimSpace(string(got.GetStderr())))
	}
	return conform.Parse(string(got.GetStdout()))
}
