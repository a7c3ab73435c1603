package ocispec

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cyphar/filepath-securejoin/pathrs-lite"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxDatabase limits how much of an image's passwd or group file is read.
const maxDatabase = 16 << 20

// maxGroups is the kernel's limit of supplementary groups of a process.
const maxGroups = 65536

type userRequest struct {
	user  string // Name or number; empty means root.
	group string // Name or number; empty means the user's primary group.
}

// ResolveUser returns the user of a container, by the root filesystem at rootfs. The user is the
// request's run_as_user or run_as_username, else the image's. The group is the request's, else the
// image's if the user is the image's too, else the user's primary group in /etc/passwd, else 0.
// With SupplementalGroupsPolicy Merge, the user's groups in /etc/group are added.
//
// The files belong to the image and are untrusted: symbolic links are followed inside rootfs only,
// and only regular files are read. A user given by number need not be listed in them; one given by
// name must.
func ResolveUser(ctx context.Context, rootfs string, img imagespec.ImageConfig, sc *runtimeapi.LinuxContainerSecurityContext) (User, error) {
	w, err := userRequestOf(img, sc)
	if err != nil {
		return User{}, err
	}
	db := database{ctx, rootfs}
	u, err := db.user(w)
	if err != nil {
		return User{}, err
	}
	gids := []uint32{u.GID}
	for _, g := range sc.GetSupplementalGroups() {
		gids = append(gids, uint32(g))
	}
	if sc.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge {
		member, err := db.groupsOf(u.Username)
		if err != nil {
			return User{}, err
		}
		gids = append(gids, member...)
	}
	slices.Sort(gids)
	u.AdditionalGids = slices.Compact(gids)
	return u, nil
}

func userRequestOf(img imagespec.ImageConfig, sc *runtimeapi.LinuxContainerSecurityContext) (userRequest, error) {
	var w userRequest
	switch {
	case sc.GetRunAsUser() != nil:
		w.user = strconv.FormatInt(sc.GetRunAsUser().GetValue(), 10)
	case sc.GetRunAsUsername() != "":
		w.user = sc.GetRunAsUsername()
	default:
		w.user, w.group, _ = strings.Cut(img.User, ":")
		if strings.Contains(w.group, ":") {
			return w, invalid("the image's user %q is not of the form user[:group]", img.User)
		}
	}
	if sc.GetRunAsGroup() != nil {
		w.group = strconv.FormatInt(sc.GetRunAsGroup().GetValue(), 10)
	}
	return w, nil
}

// database is the user database of an image. Reading stops when ctx ends, because the files may be
// large.
type database struct {
	ctx    context.Context
	rootfs string
}

func (db database) user(w userRequest) (User, error) {
	w.user = cmp.Or(w.user, "0")
	uid, numeric, err := number("user", w.user)
	if err != nil {
		return User{}, err
	}
	e, found, err := db.passwd(func(e passwdEntry) bool {
		if numeric {
			return e.uid == uid
		}
		return e.name == w.user
	})
	if err != nil {
		return User{}, err
	}
	if !found && !numeric {
		return User{}, unmet("user %q is not in the image's /etc/passwd", w.user)
	}
	if !found {
		e = passwdEntry{uid: uid}
	}
	u := User{UID: e.uid, GID: e.gid, Username: e.name, Home: e.home}
	if w.group == "" {
		return u, nil
	}
	u.GID, err = db.group(w.group)
	return u, err
}

func (db database) group(name string) (uint32, error) {
	gid, numeric, err := number("group", name)
	if err != nil || numeric {
		return gid, err
	}
	found := false
	err = db.groups(func(e groupEntry) bool {
		if e.name == name {
			gid, found = e.gid, true
		}
		return !found
	})
	if err == nil && !found {
		err = unmet("group %q is not in the image's /etc/group", name)
	}
	return gid, err
}

func (db database) groupsOf(user string) ([]uint32, error) {
	if user == "" {
		return nil, nil
	}
	var gids []uint32
	err := db.groups(func(e groupEntry) bool {
		if e.has(user) {
			gids = append(gids, e.gid)
		}
		return len(gids) <= maxGroups
	})
	if err == nil && len(gids) > maxGroups {
		err = unmet("user %q is in more than %d groups of the image's /etc/group", user, maxGroups)
	}
	return gids, err
}

// number parses s as an id. Digits outside the range of ids are an error, not a name.
func number(what, s string) (id uint32, ok bool, err error) {
	if strings.Trim(s, "0123456789") != "" {
		return 0, false, nil
	}
	id, ok = parseID(s)
	if !ok {
		return 0, false, invalid("%s %q is out of range 0..2147483647", what, s)
	}
	return id, true, nil
}

// passwd returns the first entry that match accepts. It skips malformed lines; in particular an id
// that is not a number never becomes 0.
func (db database) passwd(match func(passwdEntry) bool) (found passwdEntry, ok bool, err error) {
	err = db.eachLine("/etc/passwd", func(line string) bool {
		e, valid := parsePasswd(line)
		if valid && match(e) {
			found, ok = e, true
		}
		return !ok
	})
	return found, ok, err
}

func (db database) groups(visit func(groupEntry) bool) error {
	return db.eachLine("/etc/group", func(line string) bool {
		e, valid := parseGroup(line)
		return !valid || visit(e)
	})
}

// eachLine calls visit with each line of a file of the image. A missing file counts as empty.
func (db database) eachLine(name string, visit func(string) bool) error {
	f, err := openRegular(db.rootfs, name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err == nil {
		defer f.Close()
		err = eachLine(io.LimitReader(f, maxDatabase), func(line string) bool { return db.ctx.Err() == nil && visit(line) })
	}
	if db.ctx.Err() != nil {
		return db.ctx.Err()
	}
	if err != nil {
		return unmet("the image's %s: %w", name, err)
	}
	return nil
}

// openRegular opens a file inside root. It checks the type first, because opening a FIFO blocks and
// opening a device may have effects.
func openRegular(root, name string) (*os.File, error) {
	handle, err := pathrs.OpenInRoot(root, name)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	st, err := handle.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("not a regular file but %s", st.Mode().Type())
	}
	return pathrs.Reopen(handle, unix.O_RDONLY|unix.O_CLOEXEC)
}

// maxLine limits a line of a user database: a group with 10,000 members fits.
const maxLine = 1 << 20

// passwdEntry is a line of passwd(5).
type passwdEntry struct {
	name     string
	uid, gid uint32
	home     string
}

// groupEntry is a line of group(5).
type groupEntry struct {
	name    string
	gid     uint32
	members string // comma-separated names
}

func (e groupEntry) has(user string) bool {
	for m := range strings.SplitSeq(e.members, ",") {
		if m = strings.TrimSpace(m); m != "" && m == user {
			return true
		}
	}
	return false
}

func eachLine(r io.Reader, visit func(string) bool) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(nil, maxLine)
	n := 1
	for ; sc.Scan(); n++ {
		if !visit(sc.Text()) {
			return nil
		}
	}
	if errors.Is(sc.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("line %d is longer than %d bytes; shorten it in the image", n, maxLine)
	}
	return sc.Err()
}

// parsePasswd reads name:password:uid:gid:gecos:home:shell.
func parsePasswd(line string) (passwdEntry, bool) {
	f := strings.SplitN(line, ":", 7)
	if len(f) < 4 || f[0] == "" || f[0][0] == '#' {
		return passwdEntry{}, false
	}
	uid, okUID := parseID(f[2])
	gid, okGID := parseID(f[3])
	e := passwdEntry{name: f[0], uid: uid, gid: gid}
	if len(f) > 5 {
		e.home = f[5]
	}
	return e, okUID && okGID
}

// parseGroup reads name:password:gid:member,member.
func parseGroup(line string) (groupEntry, bool) {
	f := strings.SplitN(line, ":", 5)
	if len(f) < 3 || f[0] == "" || f[0][0] == '#' {
		return groupEntry{}, false
	}
	gid, ok := parseID(f[2])
	e := groupEntry{name: f[0], gid: gid}
	if len(f) > 3 {
		e.members = f[3]
	}
	return e, ok
}

func parseID(s string) (uint32, bool) {
	v, err := strconv.ParseUint(strings.TrimSpace(s), 10, 32)
	if err != nil || v > math.MaxInt32 {
		return 0, false
	}
	return uint32(v), true
}
