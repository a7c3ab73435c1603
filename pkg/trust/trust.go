// Package trust checks whether a user other than root can change or replace a file that berth uses.
//
// As with StrictModes of sshd, the file and each directory above it, with symbolic links resolved,
// must belong to root or the daemon's user, and must not be writable for a group or for others. The
// decision is made by checkHops, which is pure.
package trust

import (
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
)

// Purpose is the use of a file. It decides how strict the check is.
type Purpose int

const (
	// Configuration is a file that berth acts on as root.
	Configuration Purpose = iota
	// Program is a file that berth runs as root. Directories above it may be writable for a group:
	// Debian gives those of /usr/local to the group staff. A directory of which all files are run
	// must not be writable for a group.
	Program
	// Installed is a file that others install under an owner of their own: CNI plugins keep the
	// owner of their archive, profiles that of the operator. Such an owner or group causes only a
	// warning.
	Installed
)

// Hop is a file, or a directory above it.
type Hop struct {
	Path string
	UID  uint32
	Mode fs.FileMode
	// Listed means that all entries of this directory are used, including those that others add.
	Listed bool
}

// Refused is the error for a file that another user can change.
type Refused struct {
	// Path is the file or directory to correct.
	Path string
	text string
}

func (r *Refused) Error() string { return r.text }

// Unwrap returns the error class.
func (*Refused) Unwrap() error { return errdefs.ErrFailedPrecondition }

// checkHops returns the first fatal problem of the hops, and the warnings before it. owners are the
// trusted users. Pure.
func checkHops(p Purpose, owners map[uint32]bool, hops []Hop) (refused *Refused, warnings []*Refused) {
	for _, h := range hops {
		r, fatal := p.checkHop(owners, h)
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

// checkHop checks one hop. If the problem is not fatal, the hop is used nevertheless.
func (p Purpose) checkHop(owners map[uint32]bool, h Hop) (r *Refused, fatal bool) {
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

// writable reports whether the write permission of others matters. It does not for special files.
// In a sticky directory only an entry's owner can replace the entry, so it matters only if Listed
// is set.
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
