// Package store keeps the durable records of the engine's objects. Except in Force, it writes to
// disk first, and then to memory.
//
// An object is a directory with two JSON files. Its spec is written once, at the creation, and
// never changes. Its status is small and each transition replaces it as a whole. Both are written
// to a temporary file and renamed, so after a kill the daemon finds the old or the new file, never
// a part. Only a Durable spec is also flushed, so that it survives a power cut.
//
// All methods are safe for concurrent use. Reads use neither the disk nor a lock that a write holds
// while it waits for the disk.
package store

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/record"
)

const (
	specFile   = "spec.json"
	statusFile = "status.json"
)

// Durability is what a created object must survive.
type Durability = atomicfile.Durability

// A Relaxed object survives the end of the daemon, a Durable object also a power cut.
const (
	Relaxed = atomicfile.Relaxed
	Durable = atomicfile.Durable
)

// Object is one record: an immutable spec S and the current status T.
type Object[S, T any] struct {
	id   string
	dir  string
	spec *S
	mu   sync.Mutex // serialises writes of status
	gone bool       // guarded by mu
	// unwritten is set while the status is not on disk; guarded by mu.
	unwritten bool
	status    atomic.Pointer[T]
}

// ID returns the object's id.
func (o *Object[S, T]) ID() string { return o.id }

// Spec returns the spec given to Create. It must not be changed.
func (o *Object[S, T]) Spec() *S { return o.spec }

// Status returns the current status. It must not be changed.
func (o *Object[S, T]) Status() *T { return o.status.Load() }

// Update replaces the status by a copy to which change was applied. If change or the write fails,
// the status is unchanged. It fails with errdefs.ErrNotFound for a deleted object.
func (o *Object[S, T]) Update(change func(*T) error) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return fmt.Errorf("%s: %w", o.id, errdefs.ErrNotFound)
	}
	next := *o.status.Load()
	if err := change(&next); err != nil {
		return err
	}
	if err := o.write(&next); err != nil {
		return err
	}
	o.status.Store(&next)
	return nil
}

// Force is Update for facts that hold even if the disk fails: a process has exited, an object is
// being removed. Memory changes even if the write fails; the error means that a restarted daemon
// would not know the fact.
func (o *Object[S, T]) Force(change func(*T)) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.gone {
		return fmt.Errorf("%s: %w", o.id, errdefs.ErrNotFound)
	}
	next := *o.status.Load()
	change(&next)
	o.status.Store(&next)
	o.unwritten = true
	return o.write(&next)
}

// Persist writes the status if a Force could not. Call it before removing other evidence of the
// status.
func (o *Object[S, T]) Persist() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.unwritten || o.gone {
		return nil
	}
	return o.write(o.status.Load())
}

// write writes the status. mu is held.
func (o *Object[S, T]) write(status *T) error {
	if err := record.Write(filepath.Join(o.dir, statusFile), recordFormat, status, Relaxed); err != nil {
		return fmt.Errorf("record status of %s: %w", o.id, err)
	}
	o.unwritten = false
	return nil
}

// Store holds all objects of one kind.
type Store[S, T any] struct {
	dir   string
	mu    sync.RWMutex
	items map[string]*Object[S, T]
}

// Broken is an object with an unreadable record.
type Broken struct {
	ID  string
	Err error
	// StatusOnly is set if the object is still in the store, with its spec and an empty status,
	// like an object with an incomplete creation.
	StatusOnly bool
}

// Open loads the objects below dir, which it creates if missing. Unreadable objects are returned as
// Broken; only those with StatusOnly are in the store. Their files stay until Discard. If a record
// has a newer format, Open changes no record and fails with errdefs.ErrFailedPrecondition.
func Open[S, T any](dir string) (*Store[S, T], []Broken, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, nil, fmt.Errorf("create record directory: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read record directory: %w", err)
	}
	if err := refuseNewer(dir, entries); err != nil {
		return nil, nil, err
	}
	s := &Store[S, T]{dir: dir, items: make(map[string]*Object[S, T], len(entries))}
	var broken []Broken
	for _, e := range entries {
		o, err := load[S, T](filepath.Join(dir, e.Name()), e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			// An interrupted creation or removal leaves no spec.
			if err := s.Discard(e.Name()); err != nil {
				return nil, nil, err
			}
			continue
		}
		if err != nil {
			broken = append(broken, Broken{ID: e.Name(), Err: err, StatusOnly: o != nil})
		}
		if o != nil {
			s.items[o.id] = o
		}
	}
	return s, broken, nil
}

func load[S, T any](dir, id string) (*Object[S, T], error) {
	o := &Object[S, T]{id: id, dir: dir, spec: new(S)}
	if err := record.Read(filepath.Join(dir, specFile), recordFormat, o.spec); err != nil {
		return nil, err
	}
	status := new(T)
	// A power cut can lose the status of a durable spec.
	err := record.Read(filepath.Join(dir, statusFile), recordFormat, status)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		status = new(T)
	}
	o.status.Store(status)
	return o, err
}

// Create writes a new object and then makes it visible to readers. It fails with
// errdefs.ErrAlreadyExists if the id is taken. After an error nothing is left.
func (s *Store[S, T]) Create(id string, spec S, status T, d Durability) (*Object[S, T], error) {
	o := &Object[S, T]{id: id, dir: filepath.Join(s.dir, id), spec: &spec}
	o.status.Store(&status)
	if err := os.Mkdir(o.dir, 0o700); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("record %s: %w", id, errdefs.ErrAlreadyExists)
		}
		return nil, fmt.Errorf("record %s: %w", id, atomicfile.Explain(err))
	}
	if err := o.writeNew(s.dir, d); err != nil {
		return nil, errors.Join(fmt.Errorf("record %s: %w", id, err), os.RemoveAll(o.dir))
	}
	s.mu.Lock()
	s.items[id] = o
	s.mu.Unlock()
	return o, nil
}

func (o *Object[S, T]) writeNew(parent string, d Durability) error {
	if err := record.Write(filepath.Join(o.dir, statusFile), recordFormat, o.status.Load(), Relaxed); err != nil {
		return err
	}
	if err := record.Write(filepath.Join(o.dir, specFile), recordFormat, o.spec, d); err != nil {
		return err
	}
	if d == Durable {
		return atomicfile.SyncDir(parent)
	}
	return nil
}

// Get returns the object with that id.
func (s *Store[S, T]) Get(id string) (*Object[S, T], bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	o, ok := s.items[id]
	return o, ok
}

// List returns all objects, unordered.
func (s *Store[S, T]) List() []*Object[S, T] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.items))
}

// Delete removes the object. A missing object is no error.
func (s *Store[S, T]) Delete(id string) error {
	o, ok := s.Get(id)
	if !ok {
		return s.Discard(id)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if err := s.Discard(id); err != nil {
		return err
	}
	o.gone = true
	s.mu.Lock()
	delete(s.items, id)
	s.mu.Unlock()
	return nil
}

// Discard removes the files of an object that Open returned as Broken.
func (s *Store[S, T]) Discard(id string) error {
	// The spec is removed first: without a spec the object is never loaded again.
	dir := filepath.Join(s.dir, id)
	err := atomicfile.Remove(filepath.Join(dir, specFile))
	if err == nil {
		err = os.RemoveAll(dir)
	}
	if err != nil {
		return fmt.Errorf("remove record of %s: %w", id, err)
	}
	return nil
}

// recordFormat is the number of the record format, written as "format" in each file. New fields
// that older daemons may ignore do not change it. A change that they would misread increments it,
// and then older daemons refuse to start. A record of a lower format or without one is broken.
const recordFormat = 2

// refuseNewer fails if a newer daemon wrote records, before a record is treated as broken or left
// over: the pods of such records may be running.
func refuseNewer(dir string, entries []fs.DirEntry) error {
	newest, count, example := recordFormat, 0, ""
	for _, e := range entries {
		if format := formatOf(filepath.Join(dir, e.Name())); format > recordFormat {
			newest, count, example = max(newest, format), count+1, e.Name()
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%d of the records in %s are of format %d, written by a newer berth (%s is one); this berth knows formats up to %d. "+
		"Nothing was changed and pods keep running: reinstall the newer berth, or drain the node with it before the downgrade: %w",
		count, dir, newest, example, recordFormat, errdefs.ErrFailedPrecondition)
}

// formatOf is the highest format among a record's files. Unreadable files have none.
func formatOf(object string) int {
	highest := 0
	for _, name := range []string{specFile, statusFile} {
		b, err := os.ReadFile(filepath.Join(object, name))
		if format, bad := record.FormatOf(b); err == nil && bad == nil {
			highest = max(highest, format)
		}
	}
	return highest
}
