// Package trust says whether another user than root can change a file that berth
// acts on, or put another one in its place.
//
//	err := trust.Check("/etc/cdi/gpu.json", trust.Configuration) // before a library reads it
//	text, err := trust.ReadFile(path, trust.Configuration)       // what is read is what was examined
//
// Judge decides, and is pure. Everything that the kernel goes through on the way to
// a file is examined: directories, symbolic links, and the directories of those.
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

// Hop is a file, directory or symbolic link that was met on the way to a file.
type Hop struct {
	Path     string
	UID, GID uint32
	Mode     fs.FileMode
	// ACL says that more users or groups may be granted access than Mode shows.
	ACL bool
	// Volume says that it is a volume of the kubelet, mounted read-only: mode 0777,
	// and written by the kubelet only.
	Volume bool
	// InSticky says that it is an entry of a sticky directory that others can
	// write into: nobody but its owner can replace it.
	InSticky bool
	// Listed says that all entries of this directory count, whoever adds them.
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

// Judge returns what is wrong with the first bad hop, and what is to be warned of
// on the way there. Owners are the users who are trusted. Pure.
func Judge(p Purpose, owners map[uint32]bool, hops []Hop) (refused *Refused, warnings []*Refused) {
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

// judge is about one hop. Whether it is used all the same is said by fatal.
func (p Purpose) judge(owners map[uint32]bool, h Hop) (r *Refused, fatal bool) {
	link := h.Mode&fs.ModeSymlink != 0
	if link && !h.InSticky {
		return nil, false // who owns it cannot change it
	}
	switch {
	case !link && h.Mode&0o002 != 0 && h.writable():
		return p.refuse(h, "every user", "o-w"), true
	case !owners[h.UID]:
		return p.foreign(h, link), p != Installed
	case !link && h.Mode&0o020 != 0 && h.writable():
		return p.group(owners, h)
	}
	return nil, false
}

func (p Purpose) group(owners map[uint32]bool, h Hop) (r *Refused, fatal bool) {
	if p == Program && h.Mode.IsDir() && !h.Listed {
		return nil, false
	}
	fatal = p != Installed
	if h.ACL {
		return &Refused{h.Path, fmt.Sprintf("%s (owner %d, mode %s) has an access control list that lets others write, %s; run setfacl -b %s",
			h.Path, h.UID, octal(h.Mode), p.danger(), h.Path)}, fatal
	}
	// The group of the same number is a user's own on most distributions.
	if h.GID == 0 || h.GID == h.UID && owners[h.UID] {
		return nil, false
	}
	return p.refuse(h, fmt.Sprintf("group %d", h.GID), "g-w"), fatal
}

// writable says whether write permission of others matters: not for files that
// nobody writes to, and not where entries belong to who made them.
func (h Hop) writable() bool {
	if h.Mode.IsDir() {
		return !h.Volume && (h.Mode&fs.ModeSticky == 0 || h.Listed)
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

// overflowUID is how the kernel shows an owner whom a user namespace does not map.
const overflowUID = 65534

func (p Purpose) foreign(h Hop, link bool) *Refused {
	name, mend := "", "chown root"
	if h.UID == overflowUID {
		name = " (nobody; in a user namespace, a user whom it does not map)"
	}
	if link {
		mend = "chown -h root"
	}
	return &Refused{h.Path, fmt.Sprintf("%s belongs to user %d%s (mode %s), who could change %s; run %s %s",
		h.Path, h.UID, name, octal(h.Mode), p.changed(), mend, h.Path)}
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
