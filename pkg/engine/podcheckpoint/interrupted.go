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
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/record"
)

// notes is a directory with a note of each checkpoint that is being written, for the next start
// after the daemon is killed.
type notes string

const noteFormat = 1

type note struct {
	Sandbox   string `json:"sandbox"`
	Directory string `json:"directory"`
}

// file returns the path of a note. A pod may have several, one for each directory.
func (n notes) file(one note) string {
	return filepath.Join(string(n), one.Sandbox+"-"+digest.FromString(one.Directory).Encoded()[:12]+".json")
}

func (n notes) begin(one note) error {
	if err := os.MkdirAll(string(n), 0o700); err != nil {
		return err
	}
	return record.Write(n.file(one), noteFormat, one, atomicfile.Durable)
}

func (n notes) end(one note) error { return atomicfile.Remove(n.file(one)) }

// all returns the notes that were not removed.
func (n notes) all() (found []note, err error) {
	entries, err := os.ReadDir(string(n))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") {
			continue
		}
		var one note
		if rerr := record.Read(filepath.Join(string(n), e.Name()), noteFormat, &one); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		found = append(found, one)
	}
	return found, err
}

// removalWait is how long the start of the daemon waits for the removal of pods, which then
// continues in the background.
const removalWait = 5 * time.Second

// Recover removes pods that were being restored, and checkpoints that were being written, when the
// daemon was killed. Call it once, after the pods are in the index and before any other call.
func (b *Service) Recover(ctx context.Context) {
	var removals sync.WaitGroup
	for _, s := range b.Pods.Index.AllSandboxes() {
		if s.Spec().Checkpoint != "" && !s.Status().Restored {
			removals.Go(func() { b.undo(b.Pods.Background, s.ID()) })
		}
	}
	removed := make(chan struct{})
	go func() {
		removals.Wait()
		close(removed)
	}()
	select {
	case <-removed:
	case <-time.After(removalWait):
	}
	all, err := b.notes.all()
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read notes of interrupted checkpoints")
	}
	for _, one := range all {
		go b.discard(one)
	}
}

// retryInterval is the pause between checks of an interrupted checkpoint.
const retryInterval = 100 * time.Millisecond

// discard removes a checkpoint, unless it is complete, once no process writes it any more.
func (b *Service) discard(one note) {
	ctx := b.Pods.Background
	entry := log.G(ctx).WithField("sandbox", one.Sandbox).WithField("directory", one.Directory)
	if s, err := b.Pods.Index.Sandbox(one.Sandbox); err == nil {
		if client, err := s.Runner.Client(ctx); err == nil {
			// The supervisor responds after the end of the checkpoint. The pod resumes by itself.
			_, _ = client.Task.Resume(ctx, &taskapi.ResumeRequest{ID: one.Sandbox})
		}
	}
	err := directory.Discard(one.Directory)
	for ; errors.Is(err, directory.ErrInUse); err = directory.Discard(one.Directory) {
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return // the next start of the daemon retries
		}
	}
	if err != nil {
		entry.WithError(err).Warn("Failed to remove interrupted checkpoint; remove it by hand")
		return
	}
	if err := b.notes.end(one); err != nil {
		entry.WithError(err).Warn("Failed to remove note of interrupted checkpoint; the next start of berth retries")
		return
	}
	entry.Info("Cleaned up after interrupted checkpoint of pod")
}
