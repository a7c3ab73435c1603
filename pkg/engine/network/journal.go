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

// journal is a directory with one file per pod, from before its first ADD until after its
// last DEL. It is for the cases in which the sandbox's record knows less: the
// daemon was killed during Setup, or before the Result was stored. It is not
// flushed, so that a power cut may leave it empty: what libcni remembers, or the
// present configuration, has to do then.
type journal string

// journalEntry is what Setup is about to do.
type journalEntry struct {
	ID          string       `json:"id"`
	Name        string       `json:"name"`
	Namespace   string       `json:"namespace"`
	NetNS       string       `json:"netns"`
	Attachments []Attachment `json:"attachments"`
	// CNIConfDir is that of the pod's handler; empty is the node's.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	// FailedSince is when a collection first failed; zero if none has.
	FailedSince time.Time `json:"failedSince,omitzero"`
}

func (j journal) path(id string) string { return filepath.Join(string(j), id+journalSuffix) }

const (
	journalSuffix = ".json"
	journalFormat = 1
)

// write replaces the pod's file as a whole.
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

// read returns nil for a pod that has no file, or a damaged one.
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
