package podcheckpoint

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/keep"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/handler"
)

// RestorePod creates a sandbox and containers that continue from a checkpoint, and removes them
// after an error. The containers are CREATED. All of them continue when the last one is started.
func (b *Service) RestorePod(ctx context.Context, r *runtimeapi.RestorePodRequest) (_ *runtimeapi.RestorePodResponse, err error) {
	defer b.observe("restore", time.Now(), &err)
	d := handler.DefinitionFrom(ctx)
	if d == nil {
		return nil, errors.New("the sandbox has no handler definition")
	}
	if err := validate.RestorePod(r); err != nil {
		return nil, err
	}
	dir, release, err := use(ctx, r.GetCheckpointPath())
	if err != nil {
		return nil, err
	}
	defer release()
	m, err := manifest.Read(dir)
	if err != nil {
		return nil, err
	}
	from, letGo, err := b.check(ctx, d, r, m, dir)
	if err != nil {
		return nil, err
	}
	defer letGo()
	failpoint.Hit(failpoint.PodRestoreChecked)
	return b.restore(ctx, r, m, from)
}

// check returns the checkpoint and the binaries of r's pod, which stay until release is called. It
// makes every check that is possible before the pod is created.
func (b *Service) check(ctx context.Context, d *handler.Definition, r *runtimeapi.RestorePodRequest, m *manifest.Manifest, dir string) (_ *pod.Origin, release func(), err error) {
	rt, installed, letGo, err := b.Binaries.Copies.ForPod(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	defer func() {
		if err != nil {
			letGo()
		}
	}()
	if err := checkCapability(ctx, b.Capabilities, d, rt); err != nil {
		return nil, nil, err
	}
	to := &manifest.Target{Handler: handlerOf(d, rt, installed), Pod: r.GetConfig(), Containers: r.GetContainerConfigs(), Images: map[string]manifest.Image{}}
	if to.Node, err = thisNode(); err != nil {
		return nil, nil, err
	}
	from := &pod.Origin{Images: filepath.Join(dir, manifest.ImagesDir)}
	if !manifest.SameBinaries(m.Handler.Binaries, to.Handler.Binaries) {
		for _, kept := range b.kept(m.Handler.Binaries) {
			old, all, letKeptGo, err := b.Binaries.Copies.Reuse(ctx, d, kept)
			if err == nil {
				letGo()
				letGo, from.Binaries, to.Handler = letKeptGo, all, handlerOf(d, old, all)
				break
			}
		}
	}
	for _, c := range r.GetContainerConfigs() {
		img, err := b.Images.ToRun(c.GetImage().GetImage(), catalog.PlatformOf(d))
		if errdefs.IsNotFound(err) {
			err = fmt.Errorf("%v: %w", err, errdefs.ErrFailedPrecondition) // the image is not the object of the call
		}
		if err != nil {
			return nil, nil, fmt.Errorf("container %q: %w", c.GetMetadata().GetName(), err)
		}
		to.Images[c.GetMetadata().GetName()] = manifest.Image{ID: img.ID}
	}
	if err := m.Fits(to); err != nil {
		return nil, nil, err
	}
	if err := m.Verify(ctx, dir, manifest.Quickly); err != nil {
		return nil, nil, err
	}
	return from, letGo, nil
}

// kept returns the kept binaries of pods on this node with the same content as wanted.
func (b *Service) kept(wanted []manifest.Binary) (found [][]keep.Binary) {
	for _, o := range b.Pods.Sandboxes.List() {
		all := o.Spec().Pinned.Binaries
		if len(all) > 0 && manifest.SameBinaries(programs(all), wanted) {
			found = append(found, all)
		}
	}
	return found
}

func (b *Service) restore(ctx context.Context, r *runtimeapi.RestorePodRequest, m *manifest.Manifest, from *pod.Origin) (_ *runtimeapi.RestorePodResponse, err error) {
	made, err := b.Sandboxes.RestorePodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: r.GetConfig(), RuntimeHandler: r.GetRuntimeHandler()}, from)
	if err != nil {
		return nil, err
	}
	id := made.GetPodSandboxId()
	defer func() {
		if err != nil {
			b.undo(context.WithoutCancel(ctx), id)
		}
	}()
	failpoint.Hit(failpoint.PodRestoredSandbox)
	s, err := b.Pods.Index.Sandbox(id)
	if err != nil {
		return nil, err
	}
	if !manifest.SameBinaries(programs(s.Spec().Pinned.Binaries), m.Handler.Binaries) {
		return nil, fmt.Errorf("the runtime of handler %q was replaced meanwhile; try again: %w", s.Spec().Definition.Name, keep.ErrChanged)
	}
	response := &runtimeapi.RestorePodResponse{PodSandboxId: id}
	for _, c := range r.GetContainerConfigs() {
		created, err := b.Containers.RestoreContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: id, Config: c, SandboxConfig: r.GetConfig()}, from.Images)
		if err != nil {
			return nil, fmt.Errorf("container %q: %w", c.GetMetadata().GetName(), err)
		}
		failpoint.Hit(failpoint.PodRestoredContainer)
		if err := b.checkImage(created.GetContainerId(), m); err != nil {
			return nil, err
		}
		response.RestoredContainers = append(response.RestoredContainers, &runtimeapi.RestoredContainer{Name: c.GetMetadata().GetName(), ContainerId: created.GetContainerId()})
	}
	err = s.Update(func(st *pod.SandboxStatus) error { st.Restored = true; return nil })
	if err != nil {
		return nil, err
	}
	log.G(ctx).WithFields(log.Fields{"sandbox": id, "checkpoint": filepath.Dir(from.Images)}).Info("Pod restored from checkpoint")
	return response, nil
}

// checkImage fails if a container's image differs from the checkpoint's: the requested name may
// have been moved to another image meanwhile.
func (b *Service) checkImage(id string, m *manifest.Manifest) error {
	c, err := b.Pods.Index.Container(id)
	if err != nil {
		return err
	}
	for _, was := range m.Containers {
		if was.Name == c.Config().GetMetadata().GetName() && was.Image.ID != c.Spec().ImageID {
			return fmt.Errorf("image %s was replaced meanwhile; try again: %w", was.Image.Name, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// undo removes a partially restored pod.
func (b *Service) undo(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, pod.UndoTimeout)
	defer cancel()
	_, err := b.Sandboxes.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
	if err == nil {
		_, err = b.Sandboxes.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
	}
	if err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", id).Error("Failed to remove partially restored pod; it stays listed")
	}
}
