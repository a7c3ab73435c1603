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

// Fingerprint is another one when one of these files, or one in these directories,
// has changed, links followed. It also says whether there is a link on the way to
// one, behind which nobody is told of changes. What gives no answer counts as it is.
func Fingerprint(paths []string) (print string, links bool) {
	sum, l := sha256.New(), &Looker{}
	for _, path := range paths {
		links = l.mark(sum, path) || links
		if !IsDir(path) {
			continue
		}
		// What cannot be listed has no names, which is a mark too.
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
		// Its times change with names that do not count.
		m.text = "directory"
	} else {
		m.text = fmt.Sprint(info.Mode(), info.Size(), info.ModTime().UnixNano())
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		m.text += fmt.Sprint(" ", st.Dev, " ", st.Ino)
	}
	return m
}
