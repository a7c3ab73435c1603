package ocispec

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// maxLine bounds a line of a user database: a group with 10,000 members fits.
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
	members string // Names, with commas between them.
}

// has says whether a user is a member.
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
