package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	runcapi "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/berth-cri/berth/internal/test"
)

func TestCheckpointArgs(t *testing.T) {
	for _, c := range []struct {
		options *runcapi.CheckpointOptions
		want    []string
	}{
		{&runcapi.CheckpointOptions{}, []string{"checkpoint", "--leave-running", "--image-path", "/images", "id"}},
		{
			&runcapi.CheckpointOptions{WorkPath: "/work", OpenTcp: true, ExternalUnixSockets: true, Terminal: true, FileLocks: true},
			[]string{"checkpoint", "--leave-running", "--image-path", "/images", "--work-path", "/work", "--tcp-established", "--ext-unix-sk", "--shell-job", "--file-locks", "id"},
		},
	} {
		test.EqualLists(t, fmt.Sprintf("%v gives", c.options), checkpointArgs("id", "/images", c.options), c.want)
	}
}

func TestCheckpointOptions(t *testing.T) {
	test.Checkf(t, checkpointOptions(nil, &runcapi.CheckpointOptions{}), "none")
	good := test.Value(anypb.New(&runcapi.CheckpointOptions{WorkPath: "/work"}))(t)
	for _, url := range []string{good.GetTypeUrl(), string(good.MessageName())} {
		o := &runcapi.CheckpointOptions{}
		if err := checkpointOptions(&anypb.Any{TypeUrl: url, Value: good.GetValue()}, o); err != nil || o.GetWorkPath() != "/work" {
			t.Errorf("%s: %v, %v", url, o, err)
		}
	}
	other := test.Value(anypb.New(&taskAPI.PauseRequest{}))(t)
	for name, a := range map[string]*anypb.Any{"another message": other, "no message": {TypeUrl: good.GetTypeUrl(), Value: []byte{0xff}}} {
		test.Is(t, checkpointOptions(a, &runcapi.CheckpointOptions{}), errdefs.IsInvalidArgument, "%s", name)
	}
}

func TestExplainCheckpoint(t *testing.T) {
	failed, dir := errors.New("criu failed: type NOTIFY errno 0"), t.TempDir()
	if err := ExplainCheckpoint(failed, dir); !errors.Is(err, failed) || err.Error() != failed.Error() {
		t.Errorf("without a log: %v", err)
	}
	said := "(00.1) Error (criu/vdso.c:381): vdso: Unexpected rt vDSO area bounds\n"
	test.Must(t, os.WriteFile(filepath.Join(dir, "dump.log"), []byte(said), 0o600))
	if err := ExplainCheckpoint(failed, dir); !errors.Is(err, failed) || !strings.HasSuffix(err.Error(), "CRIU says: vdso: Unexpected rt vDSO area bounds") {
		t.Errorf("with a log: %v", err)
	}
	test.Checkf(t, ExplainCheckpoint(nil, dir), "without an error")
}

func TestCRIUErrors(t *testing.T) {
	const rlimit = "(00.065265) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\n"
	for name, c := range map[string]struct{ log, want string }{
		"nothing":          {"", ""},
		"no error":         {"(00.1) Dumping finished successfully\n", ""},
		"only the end":     {"(00.233798) Error (criu/cr-dump.c:2128): Dumping FAILED.\n", ""},
		"only the warning": {rlimit, "rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"},
		"the first counts": {
			rlimit + "(00.175703) Error (criu/files-reg.c:1790): Can't lookup mount=27 for fd=0 path=/x\n(00.175707) ----\n" +
				"(00.175715) Error (criu/cr-dump.c:1698): Dump files (pid: 7) failed with -1\n(00.2) Error (criu/cr-dump.c:2128): Dumping FAILED.\n",
			"Can't lookup mount=27 for fd=0 path=/x",
		},
		"a helper that is gone": {
			"(00.1) Error (criu/cgroup.c:1247): cg: cgroupd: recv req error: No such file or directory\n" +
				"(00.2)      1: Error (criu/files-reg.c:2104): Can't open file volume/data on restore: No such file or directory\n(00.3) Error (criu/cr-restore.c:2605): Restoring FAILED.\n",
			"Can't open file volume/data on restore: No such file or directory",
		},
	} {
		test.Equal(t, name, criuErrors([]byte(c.log)), c.want)
	}
}
