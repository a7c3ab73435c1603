package podcheckpoint

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/pod"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	"github.com/berth-cri/berth/pkg/engine/sandbox"
)

// notes say where checkpoints are being written, for who starts after a kill.
type notes struct{ pods *pod.Registry }

// note is the content of one.
type note struct {
	Directory string `json:"directory"`
}

func (n *notes) begin(sandbox, dir string) error {
	path := n.pods.PodCheckpointFile(sandbox)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(note{dir})
	if err != nil {
		return err
	}
	return atomicfile.Write(path, text, 0o600, atomicfile.Durable)
}

func (n *notes) end(sandbox string) error {
	return atomicfile.Remove(n.pods.PodCheckpointFile(sandbox))
}

// all are the directories that were being written, by the sandbox.
func (n *notes) all() (map[string]string, error) {
	found := map[string]string{}
	dir := filepath.Dir(n.pods.PodCheckpointFile(""))
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return found, nil
	}
	for _, e := range entries {
		id, isNote := strings.CutSuffix(e.Name(), ".json")
		if !isNote {
			continue
		}
		text, rerr := os.ReadFile(filepath.Join(dir, e.Name()))
		var one note
		if rerr == nil {
			rerr = json.Unmarshal(text, &one)
		}
		if rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		found[id] = one.Directory
	}
	return found, err
}

// interrupted cleans up after a daemon that was killed.
type interrupted struct {
	pods      *pod.Registry
	notes     *notes
	sandboxes *sandbox.Service
}

// Recover removes pods that were being restored, and checkpoints that were being written, when
// the daemon was killed. It is called when pods are in the index, and nobody else calls.
func (b *interrupted) Recover(ctx context.Context) {
	for _, s := range b.pods.Index.AllSandboxes() {
		if s.Spec().Checkpoint == "" || s.Status().Restored {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, pod.UndoTimeout)
		if err := remove(bounded, b.sandboxes, s.ID()); err != nil {
			log.G(ctx).WithError(err).WithField("sandbox", s.ID()).Error("Failed to remove partially restored pod; listed as it is")
		}
		cancel()
	}
	all, err := b.notes.all()
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read which checkpoints were being written")
	}
	for id, dir := range all {
		go b.discard(id, dir)
	}
}

// discard removes what there is of a checkpoint, once nobody writes it any more.
func (b *interrupted) discard(id, dir string) {
	ctx := b.pods.Background
	entry := log.G(ctx).WithField("sandbox", id).WithField("directory", dir)
	if s, err := b.pods.Index.Sandbox(id); err == nil {
		if s.Op.Lock(ctx) != nil {
			return
		}
		defer s.Op.Unlock()
		if client, err := s.Runner.Client(ctx); err == nil {
			// It is answered after the checkpoint, and asks for nothing: pods go on by themselves.
			_, _ = client.Task.Resume(ctx, &taskapi.ResumeRequest{ID: id})
		}
	}
	if err := manifest.Discard(dir); err != nil {
		entry.WithError(err).Warn("Failed to remove interrupted checkpoint; remove it by hand")
		return
	}
	if err := b.notes.end(id); err != nil {
		entry.WithError(err).Warn("Failed to forget interrupted checkpoint; the next start tries again")
		return
	}
	entry.Info("Interrupted checkpoint of pod removed")
}
