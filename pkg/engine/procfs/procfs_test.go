package procfs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/test"
)

func TestParseStat(t *testing.T) {
	fields := slices.Repeat([]string{"0"}, 53)
	for number, value := range map[int]string{3: "Z", 4: "7", 5: "8", 6: "9", 8: "-1", 9: "4194308", 22: "123456", 52: "256"} {
		fields[number] = value
	}
	after := " " + strings.Join(fields[3:], " ")
	for _, name := range []string{"sh", "a b", "x) R 1 1", "(((", ""} {
		got, err := parseStat([]byte("42 (" + name + ")" + after))
		want := Stat{State: 'Z', Parent: 7, Group: 8, Session: 9, Flags: 0x400004, Started: 123456, ExitCode: 256}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v, want %+v", name, got, err, want)
		}
		if !got.Ended() || !got.Exiting() || (Stat{State: 'S', Flags: 0x400000}).Ended() || (Stat{State: 'S', Flags: 0x400000}).Exiting() {
			t.Errorf("%q: %+v has ended %v, is exiting %v", name, got, got.Ended(), got.Exiting())
		}
	}
	for _, bad := range []string{"", "42 (sh) R", "42 (sh) R x" + strings.Repeat(" 1", 60)} {
		test.Fails(t, test.Err(parseStat([]byte(bad))), "%q was parsed", bad)
	}
	own, err := StatOf(os.Getpid())
	if err != nil || own.Parent != os.Getppid() || own.Started == 0 {
		t.Errorf("this process: %+v, %v", own, err)
	}
}

func TestParseCgroups(t *testing.T) {
	got := ParseCgroups([]byte("12:pids:/a\n4:cpu,cpuacct:/b:c\n1:name=systemd:/s\n0::/u (deleted)\nbroken\n"))
	for controller, want := range map[string]string{"pids": "/a", "cpu": "/b:c", "cpuacct": "/b:c", "name=systemd": "/s", "": "/u"} {
		test.Equal(t, fmt.Sprintf("%q", controller), got[controller], want)
	}
}

func TestMembers(t *testing.T) {
	for content, want := range map[string][]int{"": nil, "12\n0\n13\n": {12, 13}, "12\nx\n": nil} {
		dir := t.TempDir()
		test.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(content), 0o600))
		got, err := Members(dir)
		if !slices.Equal(got, want) || (err != nil) != strings.Contains(content, "x") {
			t.Errorf("%q: %v, %v", content, got, err)
		}
	}
	test.ErrorIs(t, test.Err(Members(t.TempDir())), fs.ErrNotExist, "Members of a directory that is not a cgroup")
}

func TestThisProcess(t *testing.T) {
	all, err := Processes()
	if err != nil || !slices.Contains(all, os.Getpid()) || !slices.Contains(all, 1) {
		t.Errorf("the processes are %v, %v", all, err)
	}
	where, err := CgroupsOf(os.Getpid())
	if err != nil || len(where) == 0 {
		t.Errorf("the cgroups are %v, %v", where, err)
	}
	score := test.Value(OOMScore())(t)
	test.Check(t, SetOOMScore(os.Getpid(), score))
	test.ErrorIs(t, SetOOMScore(1<<22+1, 0), fs.ErrNotExist, "the score of a process that does not exist")
}
