package container

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/beneath"
	"github.com/berth-cri/berth/pkg/engine/checkpoint"
	"github.com/berth-cri/berth/pkg/engine/failpoint"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/ocispec"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/reserve"
	"github.com/berth-cri/berth/pkg/engine/shim"
	"github.com/berth-cri/berth/pkg/engine/store"
	"github.com/berth-cri/berth/pkg/engine/task"
	"github.com/berth-cri/berth/pkg/engine/validate"
	"github.com/berth-cri/berth/pkg/step"
)

type creation struct {
	Deps
	specs *specifier
	ends  *ends
}

// CreateContainer creates a container in a READY sandbox, without starting its first process. After
// an error nothing is left or, if roll-back failed, the container is listed as EXITED. A stop of
// the sandbox aborts the call.
func (b *creation) CreateContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest) (*runtimeapi.CreateContainerResponse, error) {
	return b.create(ctx, r, "")
}

// RestoreContainer is CreateContainer for a container of a restored pod; from is the directory that
// the runtime wrote.
func (b *creation) RestoreContainer(ctx context.Context, r *runtimeapi.CreateContainerRequest, from string) (*runtimeapi.CreateContainerResponse, error) {
	return b.create(ctx, r, from)
}

func (b *creation) create(ctx context.Context, r *runtimeapi.CreateContainerRequest, from string) (*runtimeapi.CreateContainerResponse, error) {
	s, err := b.Pods.Index.Sandbox(r.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	if err := validate.CreateContainer(r, s.Config()); err != nil {
		return nil, err
	}
	if err := ocispec.CheckProc(r.GetConfig().GetMounts()); err != nil {
		return nil, err
	}
	if err := s.Open(); err != nil {
		return nil, err
	}
	if err := b.Capabilities.CheckContainer(ctx, r.GetConfig(), s.Spec()); err != nil {
		return nil, err
	}
	img, err := b.Images.ToRun(r.GetConfig().GetImage().GetImage(), catalog.PlatformOf(s.Spec().Definition))
	if err == nil && img.Checkpoint {
		if err = b.Images.MayRestore(img); err == nil {
			err = b.needCRIU(ctx, s.Spec())
		}
	}
	if err == nil {
		img, err = b.Images.Whole(ctx, img)
	}
	if err != nil {
		return nil, err
	}
	ctx, leave, err := s.Making.Enter(ctx)
	if err != nil {
		return nil, s.NotReady()
	}
	defer leave()
	if err := b.needNamespaces(ctx, s); err != nil {
		return nil, err
	}
	id := pod.NewID()
	name := reserve.ContainerName(s.ID(), r.GetConfig().GetMetadata())
	if err := b.Pods.Names.Reserve(name, id); err != nil {
		return nil, b.Pods.Index.ExplainTaken(err)
	}
	u := &pod.Undo{}
	u.Add("name", func(context.Context) error { b.Pods.Names.Release(name, id); return nil })
	c, err := b.makeOrRestore(ctx, u, s, id, &createRequest{request: r, image: img, from: from})
	if err != nil {
		if s.Making.Ctx.Err() != nil {
			err = s.NotReady()
		}
		if uerr := u.Run(); uerr != nil {
			log.G(ctx).WithError(uerr).WithField("container", id).Error("Failed to roll back partially created container; listed as exited")
			b.ShowFailed(ctx, c, err)
		}
		return nil, err
	}
	failpoint.Hit(failpoint.ContainerCreated)
	b.Events.Announce(c.ID(), s, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	b.Hooks.Plugins.PostCreateContainer(ctx, b.Hooks.Container(c))
	return &runtimeapi.CreateContainerResponse{ContainerId: id}, nil
}

// needNamespaces fails if a namespace of s was unmounted, as by `umount -R /run/netns`. The
// namespace cannot be restored, so s becomes NOTREADY and the kubelet runs a new sandbox for the
// pod. needNamespaces must not be called while s is being stopped.
func (b *Deps) needNamespaces(ctx context.Context, s *pod.Sandbox) error {
	lost := s.Status().Namespaces.Lost()
	if lost == "" {
		return nil
	}
	ready := s.Status().Phase == pod.PhaseReady
	s.Record(ctx, func(st *pod.SandboxStatus) { st.Phase = pod.PhaseStopped })
	if ready {
		b.Events.Announce(s.ID(), s, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	}
	return fmt.Errorf("namespace %s of sandbox %s was unmounted by something else on the node; run a new sandbox for the pod: %w",
		lost, s.ID(), errdefs.ErrFailedPrecondition)
}

// ShowFailed lists a partially created container that could not be rolled back, so that the kubelet
// removes it; otherwise its leftovers would leak.
func (b *creation) ShowFailed(ctx context.Context, c *pod.Container, cause error) {
	c.Record(ctx, func(st *pod.ContainerStatus) {
		st.Failed("CreateError", cause, b.Pods.Clock.Now())
	})
	close(c.Exited)
	close(c.Erased) // lets Remove retry the clean-up
	b.Pods.Index.AddContainer(c)
}

type createRequest struct {
	request *runtimeapi.CreateContainerRequest
	image   *catalog.Image
	from    string
	// checkpoint is the container's own; nil if the container is new, or its pod is restored.
	checkpoint *checkpoint.Unpacked
}

// make creates the parts of a container one after the other; u rolls them back. After an error the
// container is returned if it has a record.
func (b *creation) make(ctx context.Context, u *pod.Undo, s *pod.Sandbox, id string, a *createRequest) (*pod.Container, error) {
	if err := b.Binaries.Runtimes.Ensure(s); err != nil {
		return nil, err
	}
	spec, err := b.plan(s, id, a.request, a.image)
	if err != nil {
		return nil, err
	}
	spec.Checkpoint = a.from
	if a.checkpoint != nil {
		spec.Checkpoint, spec.ImageName = b.Pods.RestoreDir(id), cmp.Or(a.image.Tag(a.checkpoint.Config.RootfsImageName), spec.ImageRef)
	}
	b.Pods.Labels.Hold(spec.ProcessLabel)
	u.Add("label", func(context.Context) error { b.Pods.Labels.Release(spec.ProcessLabel); return nil })
	o, err := b.Pods.Containers.Create(id, *spec, pod.ContainerStatus{}, store.Relaxed)
	if err != nil {
		return nil, err
	}
	c := pod.NewContainer(o, s)
	u.Add("record", func(context.Context) error { return b.Pods.Containers.Delete(id) })
	u.Add("bundle", func(ctx context.Context) error { return b.ends.RemoveParts(ctx, c) })
	failpoint.Hit(failpoint.ContainerPlanned)
	return c, b.makeParts(ctx, u, c, a)
}

func (b *creation) mountParts(ctx context.Context, c *pod.Container, a *createRequest) ([]mount.Mount, error) {
	rootfs, err := b.Rootfs.PrepareRootfs(ctx, c, a.image)
	if err == nil && a.checkpoint != nil {
		err = b.applyCheckpoint(ctx, c, a, rootfs)
	}
	if err == nil {
		err = b.Rootfs.MountVolumes(ctx, c)
	}
	return rootfs, err
}

func (b *creation) makeParts(ctx context.Context, u *pod.Undo, c *pod.Container, a *createRequest) error {
	mounting, end := step.Begin(ctx, step.Rootfs)
	rootfs, err := b.mountParts(mounting, c, a)
	if end(err); err != nil {
		return err
	}
	runtime, err := b.Binaries.Prober.Probe(ctx, b.Binaries.Runtimes.Of(c.Sandbox.Spec()))
	if err != nil {
		return err
	}
	ociSpec, user, err := b.specs.buildSpec(ctx, c, a.image, rootfs, runtime)
	if err != nil {
		return err
	}
	adjusting, end := step.Begin(ctx, step.Plugins)
	err = b.specs.adjust(adjusting, u, c, ociSpec, runtime)
	if end(err); err != nil {
		return err
	}
	if c.Sandbox.Spec().Plan.User != nil {
		if err := b.Rootfs.MapFor(c, ociSpec, runtime); err != nil {
			return err
		}
	}
	if a.checkpoint != nil {
		if err := a.checkpoint.Spec.Fits(ociSpec); err != nil {
			return err
		}
	}
	failpoint.Hit(failpoint.ContainerMounted)
	if err := b.writeBundle(c, ociSpec); err != nil {
		return err
	}
	u.Add("task", func(ctx context.Context) error { return b.ends.EraseTask(ctx, c) })
	creating, end := step.Begin(ctx, step.Runtime)
	err = b.createTask(creating, u, c, rootfs)
	if end(err); err != nil {
		return err
	}
	if err := c.Sandbox.Open(); err != nil {
		return err // the sandbox was stopped meanwhile
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return b.Hooks.Plugins.Shown(b.Hooks.Container(c), func() error {
		err := c.Update(func(st *pod.ContainerStatus) error {
			st.Phase = pod.PhaseCreated
			st.User = user
			st.Resources.Msg = ocispec.ContainerResources(ociSpec)
			return nil
		})
		if err != nil {
			return err
		}
		return c.Sandbox.Making.Show(func() { b.Pods.Index.AddContainer(c) })
	})
}

// createTask creates the task of c. A stop of the sandbox aborts it, a cancellation by the caller
// does not.
func (b *creation) createTask(ctx context.Context, u *pod.Undo, c *pod.Container, rootfs []mount.Mount) error {
	s := c.Sandbox
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), task.CallTimeout(s.Spec().Definition))
	defer cancel()
	defer context.AfterFunc(s.Making.Ctx, cancel)()
	client, err := b.Tasks.Worker(ctx, s)
	if err != nil {
		return err
	}
	options, err := s.Runner.Options(pod.TaskOptions{LogDirectory: c.Spec().LogDirectory, LogPath: c.Spec().LogPath, Checkpoint: c.Spec().Checkpoint})
	if err != nil {
		return err
	}
	if err := s.Runner.OpenLog(ctx, c); err != nil {
		return err
	}
	io := b.Pods.Stdio(c)
	request := &taskapi.CreateTaskRequest{
		ID: c.ID(), Bundle: b.Pods.ContainerDir(c.ID()), Terminal: c.Config().GetTty(),
		Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Options: options, Checkpoint: c.Spec().Checkpoint,
	}
	if s.MountsRootfs() {
		request.Rootfs = mount.ToProto(rootfs)
	}
	unanswered, err := CallCreate(ctx, client, request)
	if err == nil {
		return nil
	}
	if unanswered != nil {
		c.Creating.Store(unanswered)
		u.Add("create", c.AwaitCreated)
	}
	if !s.CreatesEarly() {
		return fmt.Errorf("create container: %w", err)
	}
	if shim.Lost(err) || shim.IsUnresponsive(err) || ctx.Err() != nil {
		return fmt.Errorf("create container: %w", s.Runner.Attribute(err))
	}
	// The runtime was already called. StartContainer returns the error (CRI: StartError).
	return c.Update(func(st *pod.ContainerStatus) error { st.Unstartable = err.Error(); return nil })
}

// CallCreate creates a task and gives up when ctx ends. The task may still be created after that:
// the caller waits for the returned call before it removes the task. The call ends with the shim at
// the latest. The shim gets no deadline, because Kata answers at the deadline with an error but
// continues the creation.
func CallCreate(ctx context.Context, client *shim.Client, request *taskapi.CreateTaskRequest) (*pod.PendingCall, error) {
	answer, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		_, err := client.Task.Create(context.WithoutCancel(ctx), request)
		answer <- task.FromShim(err)
	}()
	select {
	case err := <-answer:
		return nil, err
	case <-ctx.Done():
		return &pod.PendingCall{Ended: ended}, cmp.Or(client.Unresponsive(), ctx.Err())
	}
}

// plan returns the container's record, which stays constant for its whole life.
func (b *creation) plan(s *pod.Sandbox, id string, r *runtimeapi.CreateContainerRequest, img *catalog.Image) (*pod.ContainerSpec, error) {
	kept := s.Spec().Pinned
	path, err := s.Spec().CgroupsPath(id)
	if err != nil {
		return nil, err
	}
	config, volumes, err := b.Rootfs.PlanVolumes(s, r.GetConfig())
	if err != nil {
		return nil, err
	}
	_, signal := ocispec.StopSignal(config, img.Config.StopSignal)
	given := r.GetConfig().GetImage()
	spec := &pod.ContainerSpec{
		Sandbox:     s.ID(),
		CreatedAt:   b.Pods.Clock.Now(),
		ImageID:     img.ID,
		ImageRef:    cmp.Or(first(img.RepoDigests), img.ID),
		ImageName:   cmp.Or(given.GetUserSpecifiedImage(), first(img.RepoTags), given.GetImage()),
		ImageTag:    img.Name(given.GetUserSpecifiedImage()),
		ImageChain:  img.RootChain().String(),
		Snapshotter: kept.Snapshotter,
		CgroupsPath: path,
		StopSignal:  signal,
		Volumes:     volumes,
	}
	spec.LogDirectory, spec.LogPath = logPath(r.GetSandboxConfig(), s.Config(), r.GetConfig())
	if kept.ImageVolumes {
		if spec.DefinedVolumes, err = ocispec.DefinedVolumes(img.Config); err != nil {
			return nil, fmt.Errorf("image %s: %w", img.ID, err)
		}
	}
	spec.Config.Msg = config
	spec.ProcessLabel, spec.MountLabel, err = ocispec.SELinuxLabels(config.GetLinux().GetSecurityContext().GetSelinuxOptions(), s.Spec().ProcessLabel)
	return spec, err
}

func first(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

// logPath is the container's log file and the directory given by the kubelet, both empty without a
// log. The directory of the call has priority: a kubelet may have moved its logs since the sandbox
// was run.
func logPath(now, then *runtimeapi.PodSandboxConfig, c *runtimeapi.ContainerConfig) (dir, path string) {
	dir = cmp.Or(now.GetLogDirectory(), then.GetLogDirectory())
	if dir == "" || c.GetLogPath() == "" {
		return "", ""
	}
	return dir, filepath.Join(dir, c.GetLogPath())
}

// writeBundle writes the files that the runtime reads, and creates the container's pipes.
func (b *creation) writeBundle(c *pod.Container, spec *specs.Spec) error {
	dir := b.Pods.ContainerDir(c.ID())
	err := pod.WriteSpec(dir, spec)
	if err == nil {
		// ExecSync needs only this part of the spec.
		err = atomicfile.WriteJSON(filepath.Join(dir, "process.json"), spec.Process, atomicfile.Relaxed)
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, "io"), 0o700)
	}
	if err != nil {
		return fmt.Errorf("bundle: %w", err)
	}
	for _, p := range b.Pods.Stdio(c).Paths() {
		if err := unix.Mkfifo(p, 0o600); err != nil {
			return fmt.Errorf("create pipe %s: %w", p, err)
		}
	}
	if err := makeLogDirectory(c.Spec()); err != nil {
		return fmt.Errorf("log directory: %w", err)
	}
	return nil
}

// makeLogDirectory creates the directory of the container's log beneath the pod's log directory,
// without following links: a pod that mounts its log directory may write there.
func makeLogDirectory(spec *pod.ContainerSpec) error {
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
