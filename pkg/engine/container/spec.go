package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/rootfs"
	"github.com/berth-cri/berth/pkg/engine/supervisor/criufiles"
	"github.com/berth-cri/berth/pkg/probe"
	"github.com/berth-cri/berth/pkg/trust"
)

// specifier builds the runtime specs of containers.
type specifier struct{ Deps }

func (b *specifier) buildSpec(ctx context.Context, c *pod.Container, img *catalog.Image, mounts []mount.Mount, rt *probe.Runtime) (*specs.Spec, ocispec.User, error) {
	config := c.Config()
	images, err := b.Rootfs.VolumeSources(c)
	if err != nil {
		return nil, ocispec.User{}, err
	}
	user, volumes, err := b.look(ctx, c, img, mounts, images)
	if err != nil {
		return nil, user, err
	}
	if err := ocispec.CheckMounts(config.GetMounts()); err != nil {
		return nil, user, err
	}
	if err := makeHostPaths(config); err != nil {
		return nil, user, err
	}
	in := ocispec.Container{
		ID: c.ID(), Name: config.GetMetadata().GetName(), Config: config, Sandbox: b.Pods.SpecSandbox(c.Sandbox),
		ImageName: c.Spec().ImageName, ImageID: img.ID, Image: img.Config, User: user, CgroupsPath: c.Spec().CgroupsPath,
		ProcessLabel: c.Spec().ProcessLabel, MountLabel: c.Spec().MountLabel, ImageMounts: images, Volumes: volumes, Runtime: rt,
	}
	if r, ok := c.Sandbox.Runner.Tasks.(pod.CRIUConfigurer); ok {
		in.CRIUConfig = r.CRIUConfig(b.Pods.ContainerDir(c.ID()), rt)
	}
	if images := c.Spec().Checkpoint; images != "" && c.Sandbox.HostProcesses {
		if in.OwnIPC, err = criufiles.HasSysVIPC(images); err != nil {
			return nil, user, err
		}
	}
	if in.Base, err = b.Settings.BaseSpec(c.Sandbox.Spec()); err != nil {
		return nil, user, err
	}
	if in.TargetPID, err = b.Pods.Index.TargetPID(c.Sandbox, config); err != nil {
		return nil, user, err
	}
	spec, err := ocispec.Build(in, b.Settings.NodeOf(c.Sandbox.Spec()))
	if err != nil {
		return nil, user, err
	}
	devices, err := ocispec.CDIDevices(config)
	if err == nil {
		err = b.injectCDI(spec, devices)
	}
	if err != nil {
		return nil, user, err
	}
	if err := ocispec.Relabel(in); err != nil {
		return nil, user, err
	}
	if err := ocispec.CheckProcOf(spec); err != nil {
		return nil, user, err
	}
	return spec, user, ocispec.Fit(spec, rt)
}

// look resolves the container's user in its root filesystem, and creates its volumes.
func (b *specifier) look(ctx context.Context, c *pod.Container, img *catalog.Image, mounts []mount.Mount, images map[string]string) (user ocispec.User, volumes []ocispec.DefinedVolume, err error) {
	err = b.Rootfs.WithRootfs(c, rootfs.ReadOnly(mounts), func(dir string) (err error) {
		user, err = ocispec.ResolveUser(ctx, dir, img.Config, c.Config().GetLinux().GetSecurityContext())
		if err != nil {
			return err
		}
		targets, err := ocispec.ResolveTargets(dir, c.Config().GetMounts(), images)
		if err != nil {
			return err
		}
		volumes, err = b.Rootfs.MakeVolumes(ctx, c, dir, targets)
		return err
	})
	return user, volumes, err
}

// makeHostPaths creates directories for missing sources of mounts. Existing sources may be files.
func makeHostPaths(config *runtimeapi.ContainerConfig) error {
	for _, path := range ocispec.HostPathsToCreate(config) {
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := os.MkdirAll(path, 0o755); err != nil {
			return fmt.Errorf("create missing host path of a mount: %w", err)
		}
	}
	return nil
}

// injectCDI adds CDI devices. It reads their specs only if devices are requested.
func (b *specifier) injectCDI(spec *specs.Spec, devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(b.CDISpecDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	if err := trustedDevices(cache, devices); err != nil {
		return err
	}
	return ocispec.ApplyCDI(spec, devices, cache)
}

// trustedDevices rejects devices of CDI specs that other users can change: their hooks run as root.
// It checks only requested devices.
func trustedDevices(cache *cdi.Cache, devices []string) error {
	for _, name := range devices {
		d := cache.GetDevice(name)
		if d == nil {
			continue
		}
		file := d.GetSpec().GetPath()
		for _, err := range []error{trust.CheckDir(filepath.Dir(file), trust.Configuration), trust.Check(file, trust.Configuration)} {
			if refused, is := errors.AsType[*trust.Refused](err); is {
				return fmt.Errorf("CDI device %s: %w", name, refused)
			}
		}
	}
	return nil
}

// adjust applies the plugins' changes to the spec of a new container. It adds a step to u: a
// roll-back removes the container from the plugins.
func (b *specifier) adjust(ctx context.Context, u *pod.Undo, c *pod.Container, spec *specs.Spec, rt *probe.Runtime) error {
	if b.Hooks.Plugins == nil {
		return nil
	}
	t := b.Hooks.Planned(c, spec)
	u.Add("plugins", func(ctx context.Context) error { b.Hooks.Plugins.RemoveContainer(ctx, t); return nil })
	changes, err := b.Hooks.Plugins.CreateContainer(ctx, t)
	if err != nil || changes == nil {
		return err
	}
	if err := nri.Adjust(spec, changes, b.injectCDI); err != nil {
		return err
	}
	if err := ocispec.CheckProcOf(spec); err != nil {
		return err
	}
	if err := ocispec.FitNode(spec, b.Settings.NodeOf(c.Sandbox.Spec())); err != nil {
		return err
	}
	return ocispec.Fit(spec, rt)
}
