package hostfiles

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/berth-cri/berth/pkg/trust"
)

// These limits keep a user with write access to a configuration directory from blocking the daemon.
const (
	// MaxFileSize bounds a configuration file, in bytes.
	MaxFileSize = 1 << 20
	// MaxFiles bounds the files read from one directory.
	MaxFiles = 1000
	// MaxTotalSize bounds the total size of drop-ins, or of imported files of one kind, in bytes.
	MaxTotalSize = 8 << 20
)

// List returns the wanted names of a directory, in lexical order. A missing directory has none.
func List(dir string, wanted func(fs.DirEntry) bool) (names []string, problem string) {
	type listing struct {
		entries []fs.DirEntry
		refused *trust.Refused
		err     error
	}
	found, late := Look("list", dir, func() listing {
		entries, err := os.ReadDir(dir)
		refused, _ := errors.AsType[*trust.Refused](trust.CheckDir(dir, trust.Configuration))
		return listing{entries, refused, err}
	})
	if late {
		return nil, "cannot be listed: " + Hangs
	}
	entries, err := found.entries, found.err
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Sprintf("cannot be listed: %v", pathless(err))
	}
	for _, e := range entries {
		if wanted(e) {
			names = append(names, e.Name())
		}
	}
	if len(names) > MaxFiles {
		return names[:MaxFiles], fmt.Sprintf("has %d configuration files; only the first %d are read, up to %s; remove those that are not needed",
			len(names), MaxFiles, names[MaxFiles-1])
	}
	// Each file is also checked by itself. A sticky directory protects existing files, but any user
	// may add one.
	if found.refused != nil && len(names) > 0 {
		problem = found.refused.Error()
	}
	return names, problem
}

// Fetched is the content of a file, or the mistake that prevents reading it.
type Fetched struct {
	Data    []byte
	Mistake string
	Absent  bool
}

// Fetch reads a file. On an unreachable network file system it may never return.
func Fetch(file string) Fetched {
	// Opening a device can have effects; stat has none.
	w := trust.Find(file)
	defer w.Close()
	info, err := w.Stat()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Fetched{Mistake: "the file does not exist", Absent: true}
	case err != nil:
		return Fetched{Mistake: fmt.Sprintf("cannot be read: %v", pathless(err))}
	case isDevNull(info):
		return Fetched{}
	}
	if m := sizeMistake(info); m != "" {
		return Fetched{Mistake: m}
	}
	if m := openToOthers(w, trust.Configuration); m != "" {
		return Fetched{Mistake: m}
	}
	for range readAttempts {
		data, whole, err := readOnce(w)
		switch {
		case err != nil:
			return Fetched{Mistake: fmt.Sprintf("cannot be read: %v", pathless(err))}
		case whole:
			return Fetched{Data: data}
		}
	}
	return Fetched{Mistake: "changed while it was read; write it under another name and rename it"}
}

// readPatience bounds a blocking read.
const readPatience = time.Second

// readAttempts bounds the reads of a file that changes during each.
const readAttempts = 3

// readOnce reads a file. whole is false if it changed meanwhile.
func readOnce(w *trust.File) (data []byte, whole bool, err error) {
	f, err := w.Open()
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	// Reads of some regular files in /proc block. Other files support no deadline, which is not an
	// error.
	_ = f.SetReadDeadline(time.Now().Add(readPatience))
	data, err = io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	if err != nil {
		return nil, false, err
	}
	after, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	whole = before.ModTime().Equal(after.ModTime()) && after.Size() == int64(len(data)) && len(data) <= MaxFileSize
	return data, whole, nil
}

func sizeMistake(info fs.FileInfo) string {
	switch {
	case !info.Mode().IsRegular():
		return "must be a file, not " + kindOf(info.Mode())
	case info.Size() > MaxFileSize:
		return fmt.Sprintf("has %d bytes; the limit for a configuration file is %d", info.Size(), MaxFileSize)
	}
	return ""
}

func isDevNull(info fs.FileInfo) bool {
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null)
}
