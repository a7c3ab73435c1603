// Package trust says whether another user than root can change a file that berth
// acts on, or put another one in its place.
//
// As with StrictModes of sshd, the file and each directory above it, with symbolic links
// resolved, must belong to root or the daemon's user, and no group and no other may write it.
// judge decides, and is pure.
package trust

import (
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
)

// Purpose is what a file is for. It decides how much is asked of its owners.
type Purpose int

const (
	// Configuration is what berth acts on as root.
	Configuration Purpose = iota
	// Program is what berth runs as root. Directories above it may be writable for a
	// group: those of /usr/local are for the group staff on Debian. A directory of which
	// everything is run may not.
	Program
	// Installed is what others install under an owner of their own: CNI plugins
	// keep that of their archive, profiles that of the operator that writes them.
	// Such an owner, or a group, is warned of.
	Installed
)

// Hop is a file, or a directory above it.
type Hop struct {
	Path string
	UID  uint32
	Mode fs.FileMode
	// Listed means that all entries of this directory count, also those that others add.
	Listed bool
}

// Refused is a file that is not used, because of who can change it.
type Refused struct {
	// Path is what is to be mended: the file, or a directory above it.
	Path string
	text string
}

func (r *Refused) Error() string { return r.text }

// Unwrap gives the class of the error.
func (*Refused) Unwrap() error { return errdefs.ErrFailedPrecondition }

// judge returns what is wrong with the first bad hop, and what is to be warned of
// on the way there. Owners are the users who are trusted. Pure.
func judge(p Purpose, owners map[uint32]bool, hops []Hop) (refused *Refused, warnings []*Refused) {
	for _, h := range hops {
		r, fatal := p.judge(owners, h)
		switch {
		case r == nil:
		case fatal:
			return r, warnings
		default:
			warnings = append(warnings, r)
		}
	}
	return nil, warnings
}

// judge is about one hop. If it is not fatal, the hop is used all the same.
func (p Purpose) judge(owners map[uint32]bool, h Hop) (r *Refused, fatal bool) {
	switch {
	case h.Mode&0o002 != 0 && h.writable():
		return p.refuse(h, "every user", "o-w"), true
	case !owners[h.UID]:
		return &Refused{h.Path, fmt.Sprintf("%s belongs to user %d (mode %s), who could change %s; run chown root %s",
			h.Path, h.UID, octal(h.Mode), p.changed(), h.Path)}, p != Installed
	case h.Mode&0o020 != 0 && h.writable() && (p != Program || !h.Mode.IsDir() || h.Listed):
		return p.refuse(h, "its group", "g-w"), p != Installed
	}
	return nil, false
}

// writable reports whether write permission of others matters: not for files that are not
// regular, and not in a sticky directory, where each entry belongs to its owner.
func (h Hop) writable() bool {
	if h.Mode.IsDir() {
		return h.Mode&fs.ModeSticky == 0 || h.Listed
	}
	return h.Mode.IsRegular()
}

func (p Purpose) refuse(h Hop, who, mend string) *Refused {
	if h.Mode.IsDir() {
		return &Refused{h.Path, fmt.Sprintf("%s can replace files in %s (owner %d, mode %s), %s; run chmod %s %s",
			who, h.Path, h.UID, octal(h.Mode), p.danger(), mend, h.Path)}
	}
	return &Refused{h.Path, fmt.Sprintf("%s can be changed by %s (owner %d, mode %s), %s; run chmod %s %s",
		h.Path, who, h.UID, octal(h.Mode), p.danger(), mend, h.Path)}
}

func (p Purpose) danger() string {
	if p == Program {
		return "which would be run as root"
	}
	return "which berth would trust"
}

func (p Purpose) changed() string {
	if p == Program {
		return "what is run as root"
	}
	return "what berth trusts"
}

func octal(m fs.FileMode) string {
	n := m.Perm()
	if m&fs.ModeSticky != 0 {
		n |= 0o1000
	}
	return fmt.Sprintf("%04o", uint32(n))
}
