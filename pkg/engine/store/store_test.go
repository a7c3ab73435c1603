package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/store"
)

type spec struct{ Name string }
type status struct{ N int }

func open(t *testing.T, dir string) (*store.Store[spec, status], []store.Broken) {
	t.Helper()
	s, broken, err := store.Open[spec, status](dir)
	test.Must(t, err)
	return s, broken
}

func TestObjectsOutliveTheStore(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	for _, d := range []store.Durability{store.Relaxed, store.Durable} {
		id := []string{"relaxed", "durable"}[d]
		o := test.Value(s.Create(id, spec{id}, status{1}, d))(t)
		test.Must(t, o.Update(func(st *status) error { st.N = 7; return nil }))
	}
	again, broken := open(t, dir)
	if len(broken) != 0 || len(again.List()) != 2 {
		t.Fatalf("reopened store has %d objects and broken %v", len(again.List()), broken)
	}
	for _, id := range []string{"relaxed", "durable"} {
		o, ok := again.Get(id)
		if !ok || o.Spec().Name != id || o.Status().N != 7 || o.ID() != id {
			t.Errorf("object %s came back as %+v", id, o)
		}
	}
}

func TestCreateRefusesATakenID(t *testing.T) {
	s, _ := open(t, t.TempDir())
	test.Must(t, test.Err(s.Create("a", spec{"first"}, status{}, store.Relaxed)))
	test.Refused(t, test.Err(s.Create("a", spec{"second"}, status{}, store.Relaxed)), errdefs.IsAlreadyExists)
	if o, _ := s.Get("a"); o.Spec().Name != "first" {
		t.Errorf("the first object became %+v", o.Spec())
	}
}

func TestFailedUpdateChangesNothing(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	o := test.Value(s.Create("a", spec{}, status{1}, store.Relaxed))(t)
	refused := errors.New("refused")
	if err := o.Update(func(st *status) error { st.N = 2; return refused }); !errors.Is(err, refused) {
		t.Fatalf("Update: %v", err)
	}
	// A directory where the temporary file should go makes the write fail.
	blocker := filepath.Join(dir, "a", ".status.json.new")
	test.Must(t, os.MkdirAll(filepath.Join(blocker, "full"), 0o700))
	if err := o.Update(func(st *status) error { st.N = 3; return nil }); err == nil {
		t.Fatal("Update succeeded although the write fails")
	}
	if o.Status().N != 1 {
		t.Errorf("status is %d after failed updates, want 1", o.Status().N)
	}
	test.Fails(t, o.Force(func(st *status) { st.N = 4 }), "Force succeeded although the write fails")
	if o.Status().N != 4 {
		t.Errorf("status is %d after Force, want 4", o.Status().N)
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	s, _ := open(t, dir)
	test.Must(t, os.RemoveAll(dir))
	if _, err := s.Create("a", spec{}, status{}, store.Durable); err == nil {
		t.Fatal("Create succeeded without its directory")
	}
	if _, ok := s.Get("a"); ok || len(s.List()) != 0 {
		t.Error("a failed Create is visible")
	}
}

func TestDelete(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	o := test.Value(s.Create("a", spec{}, status{}, store.Relaxed))(t)
	for range 2 {
		test.Must(t, s.Delete("a"))
	}
	test.Refused(t, o.Update(func(*status) error { return nil }), errdefs.IsNotFound)
	if again, _ := open(t, dir); len(again.List()) != 0 {
		t.Error("a deleted object came back")
	}
	test.Checkf(t, test.Err(s.Create("a", spec{}, status{}, store.Relaxed)), "reuse of the ID of a deleted object")
}

// A crash may happen between any two writes. Open must load the files that it leaves.
func TestOpenAfterACrash(t *testing.T) {
	for name, tc := range map[string]struct {
		files      map[string]string
		objects    int
		brokenSize int
	}{
		"nothing in the directory":    {nil, 0, 0},
		"status but no spec yet":      {map[string]string{"status.json": `{"N":1}`}, 0, 0},
		"spec but no status":          {map[string]string{"spec.json": `{"format":2,"Name":"x"}`}, 1, 0},
		"unfinished temporary status": {map[string]string{"spec.json": `{"format":2}`, "status.json": `{"format":2,"N":1}`, ".status.json.new": `{"N`}, 1, 0},
		"torn spec":                   {map[string]string{"spec.json": `{"Na`, "status.json": `{"N":1}`}, 0, 1},
		"torn status":                 {map[string]string{"spec.json": `{"format":2}`, "status.json": ``}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.Must(t, os.Mkdir(filepath.Join(dir, "a"), 0o700))
			for f, text := range tc.files {
				test.Must(t, os.WriteFile(filepath.Join(dir, "a", f), []byte(text), 0o600))
			}
			s, broken := open(t, dir)
			if len(s.List()) != tc.objects || len(broken) != tc.brokenSize {
				t.Fatalf("%d objects, broken %v; want %d and %d", len(s.List()), broken, tc.objects, tc.brokenSize)
			}
			for _, b := range broken {
				if b.StatusOnly {
					o, ok := s.Get(b.ID)
					if !ok || o.Status().N != 0 {
						t.Errorf("an object without a readable status is %+v", o)
					}
					test.Must(t, o.Force(func(st *status) { st.N = 1 }))
				} else if err := s.Discard(b.ID); err != nil {
					t.Fatal(err)
				}
			}
			if again, broken := open(t, dir); len(again.List()) != tc.objects || len(broken) != 0 {
				t.Errorf("after Discard: %d objects, broken %v", len(again.List()), broken)
			}
		})
	}
}

func TestConcurrentUpdatesAreAllCounted(t *testing.T) {
	s, _ := open(t, t.TempDir())
	o := test.Value(s.Create("a", spec{}, status{}, store.Relaxed))(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 25 {
				test.Check(t, o.Update(func(st *status) error { st.N++; return nil }))
				_ = o.Status().N
			}
		})
	}
	wg.Wait()
	if o.Status().N != 200 {
		t.Errorf("counted %d of 200 updates", o.Status().N)
	}
}
