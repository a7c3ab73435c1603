package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/cgroup"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image"
	"github.com/berth-cri/berth/pkg/engine/nri"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/printable"
)

// creation makes containers.
type creation struct {
	layout
	objects   *objects
	names     *reserve.Names
	labels    *reserve.Labels
	clock     *clock
	records   *containerRecords
	images    imageIndex
	abilities *abilities
	settings  *settings
	runtimes  *runtimes
	tasks     *tasks
	mounts    *mounts
	specs     *specifier
	logs      *logs
	ends      *ends
	events    *announcer
	hooks     *hooks
	plugins   *nri.Plugins // nil unless there can be any
}

// imageIndex finds images by what pods call them.
type imageIndex interface {
	Get(name string) (*image.Image, error)
	Whole(ctx context.Context, img *image.Image) (*image.Image, error)
}

// CreateContainer makes a container in a READY sandbox, up to but not including
// its first process. After an error nothing is left, or, if something could not be
// taken back, the container is listed EXITED. A stop of the sandbox ends the call.
func (b *creation) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	s, err := b.objects.sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := validate.CreateContainer(r, s.config()); err != nil {
		return nil, err
	}
	if err := ocispec.CheckProc(r.GetConfig().GetMounts()); err != nil {
		return nil, err
	}
	if err := s.open(); err != nil {
		return nil, err
	}
	if err := b.abilities.checkContainer(ctx, r.GetConfig(), s.Spec()); err != nil {
		return nil, err
	}
	img, err := b.images.Get(r.GetConfig().GetImage().GetImage())
	if err == nil {
		img, err = b.images.Whole(ctx, img)
	}
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.making.enter(ctx)
	if err != nil {
		return nil, s.notReady()
	}
	defer leave()
	if err := s.needNamespaces(ctx, b.events); err != nil {
		return nil, err
	}
	id := newID()
	name := reserve.ContainerName(s.ID(), r.GetConfig().GetMetadata())
	if err := b.names.Reserve(name, id); err != nil {
		return nil, b.objects.taken(err)
	}
	u := &undo{}
	u.add("name", func(context.Context) error { b.names.Release(name, id); return nil })
	c, err := b.make(ctx, u, s, id, r, img)
	if err != nil {
		if s.making.ctx.Err() != nil {
			err = s.notReady()
		}
		if uerr := u.run(); uerr != nil {
			log.G(ctx).WithError(uerr).WithField("container", id).Error("a failed container could not be taken back; it is listed as exited")
			b.showFailed(ctx, c, err)
		}
		return nil, err
	}
	failpoint.Hit(failpoint.ContainerCreated)
	b.events.announce(c.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.plugins.PostCreateContainer(ctx, b.hooks.container(c))
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// showFailed lists a container that neither came to be nor could be taken back,
// so that the kubelet removes it; forgetting it would leak what is left.
func (b *creation) showFailed(ctx context.Context, c *container, cause error) {
	c.force(ctx, func(st *containerStatus) {
		st.Phase, st.ExitCode, st.Reason = phaseExited, startFailedCode, "CreateError"
		st.Message, st.FinishedAt = printable.Line(cause.Error()), b.clock.now()
	})
	close(c.exited)
	close(c.erased) // as far as it could be
	b.objects.addContainer(c)
}

// make makes the parts of a container one after the other; u takes them back. The
// container is there, also after an error, if it has a record.
func (b *creation) make(ctx context.Context, u *undo, s *sandbox, id string, r *runtimeapi.CreateContainerRequest, img *image.Image) (*container, error) {
	if err := b.runtimes.need(s); err != nil {
		return nil, err
	}
	spec, err := b.plan(s, id, r, img)
	if err != nil {
		return nil, err
	}
	b.labels.Hold(spec.ProcessLabel)
	u.add("label", func(context.Context) error { b.labels.Release(spec.ProcessLabel); return nil })
	o, err := b.records.Create(id, *spec, containerStatus{}, store.Relaxed)
	if err != nil {
		return nil, err
	}
	c := newContainer(o, s)
	u.add("record", func(context.Context) error { return b.records.Delete(id) })
	u.add("bundle", func(ctx context.Context) error { return b.ends.removeParts(ctx, c) })
	failpoint.Hit(failpoint.ContainerPlanned)
	return c, b.makeParts(ctx, u, c, img)
}

func (b *creation) makeParts(ctx context.Context, u *undo, c *container, img *image.Image) error {
	rootfs, err := b.mounts.prepareRootfs(ctx, c, img)
	if err != nil {
		return err
	}
	if err := b.mounts.mountVolumes(ctx, c); err != nil {
		return err
	}
	ociSpec, user, err := b.specs.buildSpec(ctx, c, img, rootfs)
	if err != nil {
		return err
	}
	if err := b.specs.adjust(ctx, u, c, ociSpec); err != nil {
		return err
	}
	if err := b.specs.mapMounts(ctx, c, ociSpec); err != nil {
		return err
	}
	failpoint.Hit(failpoint.ContainerMounted)
	if err := b.writeBundle(c, ociSpec); err != nil {
		return err
	}
	u.add("task", func(ctx context.Context) error { return b.ends.eraseTask(ctx, c) })
	if err := b.createTask(ctx, u, c, rootfs); err != nil {
		return err
	}
	if err := c.sandbox.open(); err != nil {
		return err // it was stopped meanwhile
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.plugins.Shown(b.hooks.container(c), func() error {
		err := c.Update(func(st *containerStatus) error {
			st.Phase = phaseCreated
			st.User = user
			st.Resources.msg = ocispec.ContainerResources(ociSpec)
			return nil
		})
		if err != nil {
			return err
		}
		return c.sandbox.making.show(func() { b.objects.addContainer(c) })
	})
}

// plan is what the container's record says for its whole life.
func (b *creation) plan(s *sandbox, id string, r *runtimeapi.CreateContainerRequest, img *image.Image) (*containerSpec, error) {
	kept := b.settings.of(s.Spec())
	path, err := cgroup.Path(kept.CgroupDriver, s.config().GetLinux().GetCgroupParent(), id)
	if err != nil {
		return nil, err
	}
	config, volumes, err := b.mounts.planVolumes(s, r.GetConfig())
	if err != nil {
		return nil, err
	}
	_, signal := ocispec.StopSignal(config, img.Config.StopSignal)
	spec := &containerSpec{
		Sandbox:     s.ID(),
		CreatedAt:   b.clock.now(),
		ImageID:     img.ID,
		ImageRef:    imageRef(img),
		ImageName:   imageName(r.GetConfig().GetImage(), img),
		ImageTag:    img.Tag(r.GetConfig().GetImage().GetUserSpecifiedImage()),
		ImageChain:  img.ChainID.String(),
		Snapshotter: kept.Snapshotter,
		CgroupsPath: path,
		StopSignal:  signal,
		Volumes:     volumes,
	}
	spec.LogDirectory, spec.LogPath = logPath(r.GetSandboxConfig(), s.config(), r.GetConfig())
	if kept.ImageVolumes {
		if spec.DefinedVolumes, err = ocispec.DefinedVolumes(img.Config, b.settings.maxImageVolumes); err != nil {
			return nil, fmt.Errorf("image %s: %w", img.ID, err)
		}
	}
	spec.Config.msg = config
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(config.GetLinux().GetSecurityContext().GetSelinuxOptions(), s.Spec().ProcessLabel)
	return spec, err
}

// imageRef is the digested name that users see; the id where there is none.
func imageRef(img *image.Image) string {
	if len(img.RepoDigests) > 0 {
		return img.RepoDigests[0]
	}
	return img.ID
}

// imageName is the name that the pod asked for.
func imageName(s *runtimeapi.ImageSpec, img *image.Image) string {
	switch {
	case s.GetUserSpecifiedImage() != "":
		return s.GetUserSpecifiedImage()
	case len(img.RepoTags) > 0:
		return img.RepoTags[0]
	}
	return s.GetImage()
}

// logPath is the container's log file and the directory that the kubelet gave for
// it, both empty when it has none. The directory of the call counts: a kubelet may
// have moved its logs since the sandbox was run.
func logPath(now, then *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) (dir, path string) {
	dir = now.GetLogDirectory()
	if dir == "" {
		dir = then.GetLogDirectory()
	}
	if dir == "" || c.GetLogPath() == "" {
		return "", ""
	}
	return dir, filepath.Join(dir, c.GetLogPath())
}

// targetPID is the process whose PID namespace a container with mode TARGET joins.
func (o *objects) targetPID(s *sandbox, c *runtimeapi.ContainerConfig) (int, error) {
	asked := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if asked.GetPid() != runtimeapi.NamespaceMode_TARGET {
		return 0, nil
	}
	t, err := o.container(asked.GetTargetId())
	if err != nil {
		return 0, fmt.Errorf("target container: %w", err)
	}
	if t.sandbox != s || t.Status().Phase != phaseRunning {
		return 0, fmt.Errorf("target container %s must run in the same sandbox: %w", asked.GetTargetId(), errdefs.ErrFailedPrecondition)
	}
	return t.Status().PID, nil
}

// writeBundle writes what the runtime reads, and the pipes of the container.
func (b *creation) writeBundle(c *container, spec *specs.Spec) error {
	dir := b.containerDir(c.ID())
	if err := writeSpec(dir, spec); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	// ExecSync needs only this part of the spec.
	process, err := json.Marshal(spec.Process)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "process.json"), process, 0o600)
	}
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "io"), 0o700); err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	for _, p := range b.stdio(c).paths() {
		if err := unix.Mkfifo(p, 0o600); err != nil {
			return fmt.Errorf("make pipe %s: %w", p, err)
		}
	}
	if err := makeLogDirectory(c.Spec()); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	return nil
}

// makeLogDirectory makes the directory of the container's log. What is below the
// pod's own may be the pod's to write into, who mounts it.
func makeLogDirectory(spec *containerSpec) error {
	if spec.LogPath == "" {
		return nil
	}
	if err := os.MkdirAll(spec.LogDirectory, 0o755); err != nil {
		return err
	}
	root, name, err := beneath.Split(spec.LogDirectory, spec.LogPath)
	if err != nil {
		return err
	}
	return beneath.MakeParents(root, name, 0o755)
}

// stdio are the FIFOs of a process, empty for those that it has not.
type stdio struct{ stdin, stdout, stderr string }

func (s stdio) paths() []string {
	var all []string
	for _, p := range []string{s.stdin, s.stdout, s.stderr} {
		if p != "" {
			all = append(all, p)
		}
	}
	return all
}
