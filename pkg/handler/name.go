package handler

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
)

// maxNameLength is the greatest length of a DNS-1123 label, in bytes.
const maxNameLength = 63

// ValidName returns nil if name is a DNS-1123 label. The Kubernetes API requires that of
// RuntimeClass.handler, so no pod could request a handler with another name. The error is of the
// class ErrInvalidArgument.
func ValidName(name string) error {
	switch {
	case name == "":
		return invalidName("a handler name is missing")
	case len(name) > maxNameLength:
		return invalidName(fmt.Sprintf("handler name %q has %d characters; a RuntimeClass can name at most %d",
			printable.Clip(name, maxNameLength), len(name), maxNameLength))
	case !label.MatchString(name):
		return invalidName(fmt.Sprintf("handler name %q is not a DNS-1123 label, so no RuntimeClass can name it: "+
			"use lower case letters, digits and '-', and begin and end with a letter or digit", name))
	}
	return nil
}

func invalidName(text string) error {
	return fmt.Errorf("%s: %w", text, errdefs.ErrInvalidArgument)
}

var label = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// Nearest returns the candidate that name was probably meant to be, and false if none is near. Case
// and separators are ignored; beyond that one edit per three characters is allowed, and at most
// three. The first of equally near candidates wins.
func Nearest(name string, candidates []string) (string, bool) {
	folded := fold(name)
	if folded == "" || len(folded) > 4*maxNameLength {
		return "", false
	}
	limit := min(3, max(1, len(folded)/3))
	best, found := "", false
	for _, c := range candidates {
		f := fold(c)
		if more := len(f) - len(folded); max(more, -more) > limit {
			continue
		}
		if d := editDistance(folded, f); d <= limit && (!found || d < limit) {
			best, found, limit = c, true, d
		}
	}
	return best, found
}

// Suggest is Nearest for the handler of a pod. It never suggests handlers named like runtimes that
// share the node's kernel: the name may have been meant for stronger isolation, as "runsc" is near
// "runc".
func Suggest(name string, handlers []string) (string, bool) {
	return Nearest(name, slices.DeleteFunc(slices.Clone(handlers), func(n string) bool {
		return strings.HasPrefix(n, "runc") || strings.HasPrefix(n, "crun") || strings.HasPrefix(n, "youki")
	}))
}

var folder = strings.NewReplacer("_", "", "-", "", ".", "", " ", "")

func fold(s string) string { return strings.ToLower(folder.Replace(s)) }

// editDistance counts insertions, deletions, substitutions and swaps of
// neighbours, by bytes (the optimal string alignment distance).
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			row[j] = min(change, last[j]+1, row[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
