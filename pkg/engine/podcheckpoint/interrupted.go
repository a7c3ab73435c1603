package podcheckpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
	"github.com/berth-cri/berth/pkg/record"
)

// notes say where checkpoints are being written, for who starts after a kill.
type notes struct{ pods *pod.Registry }

// noteFormat is the number of a note's form.
const noteFormat = 1

// note is the content of one.
type note struct {
	Sandbox   string `json:"sandbox"`
	Directory string `json:"directory"`
}

// file is where n is: a pod may be written into two directories, one after the other.
func (n *notes) file(one note) string {
	return filepath.Join(n.pods.PodCheckpointNotesDir(), one.Sandbox+"-"+digest.FromString(one.Directory).Encoded()[:12]+".json")
}

func (n *notes) begin(one note) error {
	if err := os.MkdirAll(n.pods.PodCheckpointNotesDir(), 0o700); err != nil {
		return err
	}
	return record.Write(n.file(one), noteFormat, one, atomicfile.Durable)
}

func (n *notes) end(one note) error { return atomicfile.Remove(n.file(one)) }

// all are those whose checkpoints did not come to their end.
func (n *notes) all() (found []note, err error) {
	entries, err := os.ReadDir(n.pods.PodCheckpointNotesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var one note
		if rerr := record.Read(filepath.Join(n.pods.PodCheckpointNotesDir(), e.Name()), noteFormat, &one); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		found = append(found, one)
	}
	return found, err
}

// interrupted cleans up after a daemon that was killed.
type interrupted struct {
	pods      *pod.Registry
	notes     *notes
	sandboxes *sandbox.Service
}

// removalPatience is how long the start of the daemon waits for pods to be removed; it goes on
// beside it.
const removalPatience = 5 * time.Second

// Recover removes pods that were being restored, and checkpoints that were being written, when
// the daemon was killed. It is called once, when pods are in the index and before any other call.
func (b *interrupted) Recover(ctx context.Context) {
	var removals sync.WaitGroup
	for _, s := range b.pods.Index.AllSandboxes() {
		if s.Spec().Checkpoint != "" && !s.Status().Restored {
			removals.Go(func() { b.removeUnfinished(s.ID()) })
		}
	}
	removed := make(chan struct{})
	go func() {
		removals.Wait()
		close(removed)
	}()
	select {
	case <-removed:
	case <-time.After(removalPatience):
	}
	all, err := b.notes.all()
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read which checkpoints were being written")
	}
	for _, one := range all {
		go b.discard(one)
	}
}

func (b *interrupted) removeUnfinished(id string) {
	ctx, cancel := context.WithTimeout(b.pods.Background, pod.UndoTimeout)
	defer cancel()
	if err := remove(ctx, b.sandboxes, id); err != nil {
		log.G(ctx).WithError(err).WithField("sandbox", id).Error("Failed to remove partially restored pod; listed as it is")
	}
}

// retryInterval is the pause between looks at what an interrupted checkpoint still needs.
const retryInterval = 100 * time.Millisecond

// awaitThaw waits until the containers of a pod go on: one that stands still may be being written
// by CRIU, which outlives the daemon. Others let it go on.
func (b *interrupted) awaitThaw(ctx context.Context, sandbox string) error {
	for _, c := range b.pods.Index.ContainersOf(sandbox) {
		for {
			if _, err := os.Lstat(b.pods.FrozenDir(c.ID())); err != nil {
				break
			}
			select {
			case <-time.After(retryInterval):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return nil
}

// discard removes what there is of a checkpoint, once nobody writes it any more.
func (b *interrupted) discard(one note) {
	ctx := b.pods.Background
	entry := log.G(ctx).WithField("sandbox", one.Sandbox).WithField("directory", one.Directory)
	if s, err := b.pods.Index.Sandbox(one.Sandbox); err == nil {
		if client, err := s.Runner.Client(ctx); err == nil {
			// It is answered after the checkpoint, and asks for nothing: pods go on by themselves.
			_, _ = client.Task.Resume(ctx, &taskapi.ResumeRequest{ID: one.Sandbox})
		}
	}
	if b.awaitThaw(ctx, one.Sandbox) != nil {
		return // the next start does it
	}
	err := directory.Discard(one.Directory)
	for ; errors.Is(err, directory.ErrInUse); err = directory.Discard(one.Directory) {
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return
		}
	}
	if err != nil {
		entry.WithError(err).Warn("Failed to remove interrupted checkpoint; remove it by hand")
		return
	}
	if err := b.notes.end(one); err != nil {
		entry.WithError(err).Warn("Failed to forget interrupted checkpoint; the next start tries again")
		return
	}
	entry.Info("Interrupted checkpoint of pod removed")
}
