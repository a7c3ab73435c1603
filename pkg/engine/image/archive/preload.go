package archive

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/atomicfile"
	"github.com/berth-cri/berth/pkg/engine/image/catalog"
	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
	"github.com/berth-cri/berth/pkg/record"
	"github.com/berth-cri/berth/pkg/trust"
)

// preloaded records the import of an archive, valid until the file changes.
type preloaded struct {
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	Names    []string  `json:"names"`
}

// preloadRecord is the content of disk.PreloadedFile, by file name.
type preloadRecord struct {
	Files map[string]preloaded `json:"files"`
}

// preloadFormat is the format number in disk.PreloadedFile.
const preloadFormat = 1

// archiveEndings are the suffixes of files that are imported.
var archiveEndings = []string{".tar", ".tar.gz", ".tgz", ".tar.zst"}

func isArchive(name string) bool {
	return slices.ContainsFunc(archiveEndings, func(e string) bool { return strings.HasSuffix(name, e) })
}

// Preload imports the new archives of a directory. A failed import affects only its own images, and
// is retried at the next start.
func (a *Archives) Preload(ctx context.Context, dir string) {
	entries, err := os.ReadDir(dir)
	if dir == "" || errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err == nil {
		err = trust.CheckDir(dir, trust.Configuration)
	}
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to read the directory of preloaded images")
		return
	}
	file := a.Puller.Files.Path(disk.PreloadedFile)
	before, now := readPreloaded(ctx, file), map[string]preloaded{}
	for _, e := range entries {
		if ctx.Err() != nil {
			return
		}
		if !isArchive(e.Name()) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		done, err := a.preload(ctx, path, before[e.Name()])
		if errors.Is(err, pull.ErrClosing) || errors.Is(err, context.Canceled) {
			return
		}
		if err != nil {
			log.G(ctx).WithError(err).WithField("file", path).Warn("Failed to preload images")
			continue
		}
		now[e.Name()] = done
		if err := record.Write(file, preloadFormat, preloadRecord{now}, atomicfile.Relaxed); err != nil {
			log.G(ctx).WithError(err).Warn("Failed to record preloaded images; the next start will import them again")
		}
	}
}

// preload imports an archive unless it was imported before and its images still exist.
func (a *Archives) preload(ctx context.Context, path string, before preloaded) (preloaded, error) {
	way := trust.Find(path)
	defer way.Close()
	if err := way.Check(trust.Configuration); err != nil {
		return before, err
	}
	f, err := way.Open()
	if err != nil {
		return before, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return before, err
	}
	now := preloaded{Size: info.Size(), Modified: info.ModTime().UTC(), Names: before.Names}
	if before.Size == now.Size && before.Modified.Equal(now.Modified) && a.has(before.Names) {
		return now, nil
	}
	begin := time.Now()
	now.Names, err = a.Import(ctx, f, Request{Platform: catalog.AnyPlatform})
	if err == nil {
		log.G(ctx).WithFields(log.Fields{"file": path, "images": now.Names, "duration": time.Since(begin)}).Info("Images preloaded")
	}
	return now, err
}

func (a *Archives) has(names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool {
		_, err := a.Puller.Catalog.Get(name)
		return err != nil
	})
}

// readPreloaded returns what was imported before; an unreadable record counts as empty.
func readPreloaded(ctx context.Context, file string) map[string]preloaded {
	var before preloadRecord
	err := record.Read(file, preloadFormat, &before)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		log.G(ctx).WithError(err).Warn("Failed to read the record of preloaded images; they will be imported again")
	}
	return before.Files
}
