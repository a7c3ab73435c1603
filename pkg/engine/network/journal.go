package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
)

// journal is a directory with one file per pod, from before its first ADD until after its last DEL.
// It is needed if the sandbox's record is incomplete: the daemon was killed during Setup, or before
// the Result was stored. Files are not flushed, so a power failure may leave one empty; libcni's
// cache or the present configuration is used then.
type journal string

// journalEntry is Setup's plan for a pod.
type journalEntry struct {
	ID          string       `json:"id"`
	Name        string       `json:"name"`
	Namespace   string       `json:"namespace"`
	NetNS       string       `json:"netns"`
	Attachments []Attachment `json:"attachments"`
	// CNIConfDir is the directory of the pod's handler; if empty, the node's.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	// FailedSince is the time of the first failed Collect; zero if none failed.
	FailedSince time.Time `json:"failedSince,omitzero"`
}

func (j journal) path(id string) string { return filepath.Join(string(j), id+journalSuffix) }

const (
	journalSuffix = ".json"
	journalFormat = 1
)

// write replaces the pod's file atomically.
func (j journal) write(entry *journalEntry) error {
	err := os.MkdirAll(string(j), 0o700)
	if err == nil {
		err = record.Write(j.path(entry.ID), journalFormat, entry, atomicfile.Relaxed)
	}
	if err != nil {
		return fmt.Errorf("record the network plan: %w", err)
	}
	return nil
}

// read returns nil if the pod's file is missing or damaged.
func (j journal) read(id string) (*journalEntry, error) {
	b, err := os.ReadFile(j.path(id))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var entry journalEntry
	if record.Decode(b, journalFormat, &entry) != nil {
		return nil, nil
	}
	return &entry, nil
}

func (j journal) pods() ([]string, error) {
	files, err := os.ReadDir(string(j))
	if err != nil {
		return nil, ignoreMissing(err)
	}
	var ids []string
	for _, file := range files {
		if id, ok := strings.CutSuffix(file.Name(), journalSuffix); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
