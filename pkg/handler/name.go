package handler

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/printable"
)

// maxNameLength is the length of a DNS-1123 label, in bytes.
const maxNameLength = 63

// ValidName returns nil if name is a DNS-1123 label. That is the rule the
// Kubernetes API has for RuntimeClass.handler, so a handler of any other name
// could never be asked for. The error is of the class ErrInvalidArgument.
func ValidName(name string) error {
	switch {
	case name == "":
		return invalidName("a handler name is missing")
	case len(name) > maxNameLength:
		return invalidName(fmt.Sprintf("handler name %q has %d characters; a RuntimeClass can name at most %d",
			printable.Clip(name, maxNameLength), len(name), maxNameLength))
	case !isLabel(name):
		return invalidName(fmt.Sprintf("handler name %q is not a DNS-1123 label, so no RuntimeClass can name it: "+
			"use lower case letters, digits and '-', and begin and end with a letter or digit", name))
	}
	return nil
}

func invalidName(text string) error {
	return fmt.Errorf("%s: %w", text, errdefs.ErrInvalidArgument)
}

func isLabel(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
		case c == '-' && i > 0 && i < len(s)-1:
		default:
			return false
		}
	}
	return s != ""
}
