package hostfiles

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Fingerprint returns a hash that changes when one of these files, or one in these directories,
// changes; it follows links. links is set if one of the files or directory entries is a symbolic
// link: the kernel reports no changes of its target. A file that cannot be checked in time has a
// constant mark, and sets links.
func Fingerprint(paths []string) (print string, links bool) {
	sum, l := sha256.New(), &Looker{}
	for _, path := range paths {
		links = l.mark(sum, path) || links
		if !IsDir(path) {
			continue
		}
		// An unlistable directory has no names; its problem is part of the hash.
		names, problem := List(path, func(e fs.DirEntry) bool { return !e.IsDir() })
		fmt.Fprintln(sum, problem)
		for _, name := range names {
			links = l.mark(sum, filepath.Join(path, name)) || links
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), links
}

type marks struct {
	text string
	link bool
}

func (l *Looker) mark(sum hash.Hash, path string) (link bool) {
	m, late := Ask(l, "mark", path, func() marks { return marksOf(path) })
	if late {
		m = marks{"no answer", true}
	}
	fmt.Fprintf(sum, "%q %s\n", path, m.text)
	return m.link
}

func marksOf(path string) marks {
	var m marks
	itself, err := os.Lstat(path)
	if err != nil {
		return m
	}
	m.link = itself.Mode()&fs.ModeSymlink != 0
	info, err := os.Stat(path)
	if err != nil {
		return marks{err.Error(), m.link}
	}
	if info.IsDir() {
		// The times of a directory also change with entries that do not count.
		m.text = "directory"
	} else {
		m.text = fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		m.text += fmt.Sprint(" ", st.Dev, " ", st.Ino)
	}
	return m
}
