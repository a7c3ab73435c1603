package oomlog

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-cri/berth/internal/test"
)

func TestVictimOf(t *testing.T) {
	const kill = "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=berth-a.scope,mems_allowed=0," +
		"oom_memcg=/kubepods.slice/pod1.slice,task_memcg=/kubepods.slice/pod1.slice/berth-a.scope/container,task=tail,pid=812,uid=0"
	for name, tt := range map[string]struct{ record, want string }{
		"a kill":                {"6,339,5140900,-;" + kill + "\n SUBSYSTEM=memory\n", "/kubepods.slice/pod1.slice/berth-a.scope/container"},
		"another log level":     {"4,339,5140900,-,caller=T1;" + kill, "/kubepods.slice/pod1.slice/berth-a.scope/container"},
		"something else":        {"6,340,5140901,-;eth0: link up", ""},
		"a line from a program": {"12,341,5140902,-;" + kill, ""},
		"a cpuset that forges a victim": {"6,342,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,task_memcg=/other,task=y,mems_allowed=0," +
			"oom_memcg=/mine,task_memcg=/mine,task=sh,pid=1,uid=0", "/mine"},
		"a process name that forges a victim":          {"6,342,1,-;oom-kill:oom_memcg=/mine,task_memcg=/mine,task=,task_memcg=/x,pid=1,uid=0", "/mine"},
		"a process name that forges its field":         {"6,342,1,-;oom-kill:oom_memcg=/mine,task_memcg=/mine,task=,task=,task=,t,pid=1,uid=0", "/mine"},
		"an escaped process name that forges a victim": {`6,342,1,-;oom-kill:oom_memcg=/mine,task_memcg=/mine,task=\x0a,task_memcg=\x0a\x0a,pid=1,uid=0`, "/mine"},
		"the whole machine":                            {"6,343,1,-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg=/a/b,task=sh,pid=1,uid=0", "/a/b"},
		"an older kernel":                              {"6,344,1,-;Task in /a killed as a result of limit of /a", ""},
		"nothing":                                      {"", ""},
	} {
		test.Equal(t, name, victimOf([]byte(tt.record)), tt.want)
	}
}

// recorded returns a log with these records. An empty record stands for overwritten records.
func recorded(records ...string) *Log {
	return &Log{open: func() (readRecord, error) {
		return func(into []byte) (int, error) {
			if len(records) == 0 {
				return 0, unix.EAGAIN
			}
			next := records[0]
			records = records[1:]
			if next == "" {
				return 0, unix.EPIPE
			}
			return copy(into, next), nil
		}, nil
	}}
}

func killIn(cgroup string) string {
	return "6,1,1,-;oom-kill:constraint=CONSTRAINT_MEMCG,oom_memcg=" + cgroup + ",task_memcg=" + cgroup + ",task=sh,pid=1,uid=0\n"
}

func TestKillsAreFoundByCgroup(t *testing.T) {
	l := recorded("6,1,1,-;booted\n", "", killIn("/a/berth-1.scope/container"), killIn("/a/berth-1.scope/container/below"), killIn("/a/berth-12.scope"))
	for cgroup, want := range map[string]uint64{
		"/a/berth-1.scope": 2, "/a/berth-1.scope/container": 2, "/a/berth-12.scope": 1, "/a/berth-2.scope": 0, "/berth-12.scope": 1,
	} {
		if got := l.Kills(t.Context(), cgroup); got != want {
			t.Errorf("%s: %d kills, want %d", cgroup, got, want)
		}
	}
}

func TestOnlySoManyVictimsAreRemembered(t *testing.T) {
	var records []string
	for i := range maxVictims + 10 {
		records = append(records, killIn(fmt.Sprintf("/n%d", i)))
	}
	l := recorded(records...)
	if l.Kills(t.Context(), "/n5") != 0 || l.Kills(t.Context(), fmt.Sprintf("/n%d", maxVictims)) != 1 || len(l.victims) != maxVictims {
		t.Errorf("%d victims are remembered", len(l.victims))
	}
}

// TestKernelLogTellsOfKills has the kernel kill a real process in a cgroup with little memory.
func TestKernelLogTellsOfKills(t *testing.T) {
	if _, err := openKernelLog(); err != nil {
		t.Skipf("the kernel's log cannot be read here: %v", err)
	}
	path := fmt.Sprintf("/berth-oomlog-%d", os.Getpid())
	dir, limit := "/sys/fs/cgroup/memory"+path, "memory.limit_in_bytes"
	if _, err := os.Stat(filepath.Dir(dir)); err != nil {
		dir, limit = "/sys/fs/cgroup"+path, "memory.max"
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skipf("cgroups cannot be made here: %v", err)
	}
	t.Cleanup(func() { test.Check(t, os.Remove(dir)) })
	test.Must(t, os.WriteFile(filepath.Join(dir, limit), []byte("8388608"), 0o600))
	// The kernel drops lines if there are many kills at once, for example from other tests.
	for deadline := time.Now().Add(time.Minute); New().Kills(t.Context(), path) == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("the kernel's log has no kill in %s", path)
		}
		err := exec.Command("sh", "-c", "echo $$ > "+dir+"/cgroup.procs && exec tail /dev/zero").Run()
		if err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the process exited with %v, want a kill", err)
		}
	}
}
