package ocispec

import (
	"cmp"
	"slices"
	"strings"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// kernelDirs belong to the kernel: a VOLUME there is ignored.
var kernelDirs = []string{"/dev", "/proc", "/sys"}

// maxVolumes limits how many volumes an image may define.
const maxVolumes = 100

// longestPath is PATH_MAX without its NUL.
const longestPath = 4095

// DefinedVolumes returns the paths of an image's volumes, clean and without repetition, parents
// first.
func DefinedVolumes(image imagespec.ImageConfig) ([]string, error) {
	if len(image.Volumes) == 0 {
		return nil, nil
	}
	if len(image.Volumes) > maxVolumes {
		return nil, invalid("the image defines %d volumes, more than %d; "+
			"set engine.ignore_image_defined_volumes, or use an image with fewer", len(image.Volumes), maxVolumes)
	}
	var out []string
	for p := range image.Volumes {
		clean := containerPath(p)
		switch {
		case clean == "/":
			return nil, invalid("the image defines a volume at %.64q, which would cover its whole root filesystem; "+
				"set engine.ignore_image_defined_volumes, or use another image", p)
		case strings.ContainsRune(clean, 0), len(clean) > longestPath:
			return nil, invalid("the image defines a volume at %.64q, which is not a path; use another image", p)
		}
		if !OfKernel(clean) {
			out = append(out, clean)
		}
	}
	slices.SortFunc(out, func(a, b string) int { return cmp.Or(depth(a)-depth(b), cmp.Compare(a, b)) })
	return slices.Compact(out), nil
}

// OfKernel reports whether a clean path is in a file system of the kernel.
func OfKernel(p string) bool {
	return slices.ContainsFunc(kernelDirs, func(dir string) bool { return below(p, dir) })
}
