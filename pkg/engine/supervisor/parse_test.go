package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/procfs"
)

func TestRuntimeMessage(t *testing.T) {
	for _, tt := range []struct{ name, said, want string }{
		{"nothing", "", ""},
		{"a JSON log, its last error", `{"level":"error","msg":"first"}` + "\n" + `{"level":"error","msg":"last"}` + "\n" + `{"level":"info","msg":"bye"}`, "last"},
		{"a text log", `time="2026-01-02T03:04:05Z" level=error msg="cannot \"do\" that"`, `cannot "do" that`},
		{"a text log's bare word", "level=fatal msg=no", "no"},
		{"a panic and no log", "panic: boom\n\ngoroutine 1", "goroutine 1"},
		{"JSON goes before text", "oops\n" + `{"level":"error","msg":"why"}` + "\nbye", "why"},
		{"JSON without an error", `{"level":"warning","msg":"hm"}` + "\nthe end", "the end"},
		{"broken JSON", `{"level":"error","msg":"cut`, `{"level":"error","msg":"cut`},
		{"a usage of runsc", "flag provided but not defined: -bogus\nUsage: runsc <flags>\n\nUse \"runsc flags\"\n", "flag provided but not defined: -bogus"},
		{"a usage of crun", "crun: unrecognized option '--bogus'\nTry `crun --help' or `crun --usage'\n", "crun: unrecognized option '--bogus'"},
		{"no text", "\xff\xfe", "?"},
	} {
		test.Equal(t, fmt.Sprint(tt.name), runtimeMessage([]byte(tt.said)), tt.want)
	}
	long := runtimeMessage([]byte("begin " + strings.Repeat("é", 5000) + " end"))
	if len(long) > maxMessage || !strings.HasPrefix(long, "begin ") || !strings.HasSuffix(long, " end") {
		t.Errorf("%d bytes: %.20q … %.20q", len(long), long, long[len(long)-20:])
	}
}

func TestUnknownToRuntime(t *testing.T) {
	for message, want := range map[string]bool{
		"container does not exist":                                      true,
		"error opening file `/run/x/status`: No such file or directory": true,
		"loading container: file does not exist":                        true,
		"permission denied":                                             false,
	} {
		test.Equal(t, fmt.Sprintf("%q", message), unknownToRuntime(&errCall{message: message}), want)
	}
	if unknownToRuntime(errors.New("does not exist")) {
		t.Error("an error that is none of a runtime's")
	}
}

func TestExitStatusOfWait(t *testing.T) {
	for raw, want := range map[int32]uint32{0: 0, 3 << 8: 3, 255 << 8: 255, 9: 137, 15: 143, 11 | 0x80: 139} {
		test.Equal(t, fmt.Sprintf("%#x", raw), decodeStatus(raw), want)
	}
	for info, want := range map[waitInfo]uint32{
		{code: codeExited, status: 3}:  3,
		{code: codeKilled, status: 9}:  137,
		{code: codeDumped, status: 11}: 139,
	} {
		test.Equal(t, fmt.Sprintf("%+v", info), info.exitStatus(), want)
	}
}

func TestAskedCgroup(t *testing.T) {
	for _, tt := range []struct {
		path    string
		systemd bool
		want    string
	}{
		{"", false, "/id"},
		{"/kubepods/pod1/c", false, "/kubepods/pod1/c"},
		{"kubepods/../c", false, "/c"},
		{"kubepods-pod1.slice:berth:c", true, "/kubepods.slice/kubepods-pod1.slice/berth-c.scope"},
		{"a-b-c.slice:berth:d.slice", true, "/a.slice/a-b.slice/a-b-c.slice/d.slice"},
		{"-.slice:berth:c", true, "/berth-c.scope"},
		{"/no/systemd/path", true, ""},
	} {
		test.Equal(t, fmt.Sprintf("%q", tt.path), askedCgroup(tt.path, "id", tt.systemd), tt.want)
	}
}

func TestLocateCgroup(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"v2/pod/c", "memory/pod/c", "pids/pod/c", "pids/asked", "freezer/shim"} {
		test.Must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	all := []hierarchy{
		{mount: dir + "/v2", root: "/"},
		{controller: "memory", mount: dir + "/memory", root: "/"},
		{controller: "pids", mount: dir + "/pids", root: "/"},
		{controller: "freezer", mount: dir + "/freezer", root: "/"},
	}
	own := map[string]string{"": "/shim", "memory": "/shim", "pids": "/shim", "freezer": "/shim"}
	for _, tt := range []struct {
		name      string
		container map[string]string
		asked     string
		want      Cgroup
	}{
		{"its own everywhere", map[string]string{"": "/pod/c", "memory": "/pod/c", "pids": "/pod/c"}, "",
			Cgroup{Unified: dir + "/v2/pod/c", Memory: dir + "/memory/pod/c", Pids: dir + "/pids/pod/c"}},
		{"the supervisor's", own, "", Cgroup{}},
		{"it has exited, the spec says where it was", map[string]string{"": "/", "memory": "/", "pids": "/", "freezer": "/"}, "/asked",
			Cgroup{Pids: dir + "/pids/asked"}},
		{"one that is not there", map[string]string{"": "/gone", "memory": "/gone"}, "", Cgroup{}},
		{"one outside of what is mounted", map[string]string{"memory": "/../x"}, "", Cgroup{}},
	} {
		if got := locateCgroup(all, own, tt.container, tt.asked); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestParseCounter(t *testing.T) {
	text := []byte("low 0\noom 7\noom_kill 3\noom_group_kill x\n")
	for key, want := range map[string]uint64{"oom_kill": 3, "oom": 7, "oom_group_kill": 0, "none": 0} {
		test.Equal(t, key, parseCounter(text, key), want)
	}
}

func TestBelongs(t *testing.T) {
	all := map[int]procfs.Stat{
		10: {Parent: 1, Group: 10, Session: 10},                                        // leads the exec
		11: {Parent: 10, Group: 10, Session: 10},                                       // its child
		12: {Parent: 11, Group: 12, Session: 12},                                       // a grandchild that left the session
		13: {Parent: 1, Group: 10, Session: 10},                                        // an orphan of the group
		14: {Parent: 1, Group: 9, Session: 9},                                          // an orphan of the session that the runtime made
		15: {Parent: 1, Group: 15, Session: 15},                                        // somebody else
		16: {Parent: 17, Group: 1, Session: 1}, 17: {Parent: 16, Group: 1, Session: 1}, // never seen so
	}
	for pid, want := range map[int]bool{11: true, 12: true, 13: true, 14: true, 15: false, 16: false} {
		test.Equal(t, fmt.Sprintf("%d", pid), belongs(pid, 10, 9, all), want)
	}
	if belongs(14, 10, 0, all) {
		t.Error("without a session of its own")
	}
	if belongs(15, 1, 0, all) || belongs(11, 0, 0, all) {
		t.Error("of pid 1 or of none")
	}
}

func TestCheckID(t *testing.T) {
	for _, id := range []string{"a", "0123abc", "a.b_c-d", strings.Repeat("x", 200)} {
		test.Checkf(t, checkID(id), "%.20q", id)
	}
	for _, id := range []string{"", ".", "..", "-a", "a/b", "a b", "a\n", "é", strings.Repeat("x", 201)} {
		test.Is(t, checkID(id), errdefs.IsInvalidArgument, "%.20q", id)
	}
}

func TestEnvironmentIsWithoutWhatIsOurs(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "/run/x")
	t.Setenv(InheritEnv, "{}")
	t.Setenv("KEPT", "yes")
	kept := false
	for _, kv := range environment() {
		kept = kept || kv == "KEPT=yes"
		if strings.HasPrefix(kv, "NOTIFY_SOCKET=") || strings.HasPrefix(kv, InheritEnv+"=") {
			t.Errorf("a runtime gets %s", kv)
		}
	}
	if !kept {
		t.Error("a runtime does not get the rest")
	}
	if got := environment("KEPT=no"); slices.Contains(got, "KEPT=yes") || got[len(got)-1] != "KEPT=no" {
		t.Errorf("a runtime that is told of another value gets %q", got)
	}
}

func TestArgv(t *testing.T) {
	c := &call{
		options: &Options{Runtime: "/r", Root: "/root", SystemdCgroup: true, GlobalFlags: []string{"--debug"}},
		args:    []string{"run", "id"}, logFile: "/log",
	}
	const want = "/r --root /root --systemd-cgroup --log /log --log-format json --debug run id"
	if got := strings.Join(c.argv(), " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestJournalIsReadByNameOnly(t *testing.T) {
	dir := t.TempDir()
	test.Is(t, test.Err(ReadTask(dir, "a")), errdefs.IsNotFound, "no task")
	test.Is(t, test.Err(ReadExit(dir, "a")), errdefs.IsNotFound, "no exit")
	test.Must(t, os.MkdirAll(taskDir(dir, "a"), 0o700))
	file := filepath.Join(taskDir(dir, "a"), taskFile)
	test.Must(t, os.WriteFile(file, []byte(`{"format":1,"id":"a","state":"running","fromANewerVersion":{"x":1}}`), 0o600))
	if j, err := ReadTask(dir, "a"); err != nil || j.ID != "a" || j.State != TaskRunning {
		t.Errorf("%+v, %v", j, err)
	}
	test.Must(t, os.WriteFile(file, []byte(`{"id":`), 0o600))
	if _, err := ReadTask(dir, "a"); err == nil || errdefs.IsNotFound(err) {
		t.Errorf("half a journal: %v", err)
	}
}

func TestOpenPidfdOfAReusedPid(t *testing.T) {
	stat := test.Value(procfs.StatOf(os.Getpid()))(t)
	fd := test.Value(openPidfd(Process{PID: os.Getpid(), StartTime: stat.Started}))(t)
	unix.Close(fd)
	test.ErrorIs(t, test.Err(openPidfd(Process{PID: os.Getpid(), StartTime: stat.Started + 1})), unix.ESRCH, "a process of another start time")
}
