package nodefs

import (
	"slices"
)

// Set is files with their content, of which originals are saved.
type Set struct {
	// Content is by path.
	Content map[string][]byte
	// Left are paths that others have taken over: what is there stays.
	Left map[string]bool
	// Half is called after the first file.
	Half func()
}

// Prepare adds the originals of files that are new to those that were saved. Of what others
// have taken over it has none: they have.
func (f Set) Prepare(r Root, saved []Original) ([]Original, error) {
	for path := range f.Sorted() {
		n := slices.IndexFunc(saved, func(o Original) bool { return o.Path == path })
		if n < 0 && f.Left[path] {
			continue
		}
		if n < 0 {
			o, err := r.Snapshot(path)
			if err != nil {
				return nil, err
			}
			n = len(saved)
			saved = append(saved, o)
		}
		saved[n].Writes(f.Content[path])
	}
	return saved, nil
}

// Do writes the files, and restores those that do not belong to the set any more.
func (f Set) Do(r Root, saved []Original) error {
	for path, n := range f.Sorted() {
		if n == 1 && f.Half != nil {
			f.Half()
		}
		if f.Left[path] {
			continue
		}
		o := Original{Path: path}
		if n := slices.IndexFunc(saved, func(o Original) bool { return o.Path == path }); n >= 0 {
			o = saved[n]
		}
		if err := r.Replace(o, f.Content[path]); err != nil {
			return err
		}
	}
	for _, o := range saved {
		if _, wanted := f.Content[o.Path]; wanted || f.Left[o.Path] {
			continue
		}
		if err := r.Restore(o); err != nil {
			return err
		}
	}
	return nil
}

// Sorted yields paths in lexical order, and how many came before.
func (f Set) Sorted() func(yield func(string, int) bool) {
	paths := make([]string, 0, len(f.Content))
	for path := range f.Content {
		paths = append(paths, path)
	}
	slices.Sort(paths)
	return func(yield func(string, int) bool) {
		for n, path := range paths {
			if !yield(path, n) {
				return
			}
		}
	}
}
