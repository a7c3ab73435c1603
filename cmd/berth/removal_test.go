package main

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/directory"
	"github.com/berth-cri/berth/pkg/engine/podcheckpoint/manifest"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// daemonOf serves a management API that reports checkpoints in use.
type daemonOf struct {
	adminv1.UnimplementedAdminServer

	directory  string
	inUse      []string
	recovering bool
}

func (d *daemonOf) GetStatus(context.Context, *adminv1.GetStatusRequest) (*adminv1.GetStatusResponse, error) {
	return &adminv1.GetStatusResponse{Recovering: d.recovering, PodCheckpoints: &adminv1.PodCheckpoints{Directory: d.directory, InUse: d.inUse}}, nil
}

// serveAdmin serves a management API.
func serveAdmin(t *testing.T, s adminv1.AdminServer) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l := test.Value(net.Listen("unix", socket))(t)
	server := grpc.NewServer()
	adminv1.RegisterAdminServer(server, s)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return socket
}

// checkpointIn creates a checkpoint of a pod in dir.
func checkpointIn(t *testing.T, dir string) string {
	t.Helper()
	test.Must(t, os.MkdirAll(filepath.Join(dir, manifest.ImagesDir), 0o700))
	test.Must(t, os.WriteFile(filepath.Join(dir, manifest.ImagesDir, "pages.img"), []byte("memory"), 0o600))
	m := &manifest.Manifest{
		Created: time.Now().Add(-time.Hour), Pod: []byte(`{"metadata":{"namespace":"n","name":"p"}}`),
		Containers: []manifest.Container{{Name: "main", Config: []byte("{}")}},
	}
	test.Must(t, manifest.Seal(t.Context(), dir, m))
	return dir
}

// TestRemovalAsksTheDaemon: a checkpoint that a restored pod still needs is not removed, even if
// the daemon knows it by another path.
func TestRemovalAsksTheDaemon(t *testing.T) {
	parent := t.TempDir()
	around := filepath.Join(t.TempDir(), "around")
	test.Must(t, os.Symlink(parent, around))
	waits, free := checkpointIn(t, filepath.Join(parent, "waits")), checkpointIn(t, filepath.Join(parent, "free"))
	socket := serveAdmin(t, &daemonOf{inUse: []string{filepath.Join(around, "waits")}})
	if code, _, stderr := ran(t, "checkpoint", "rm", "--admin-socket", socket, waits); code != commandline.Failed || !strings.Contains(stderr, "in use") {
		t.Errorf("rm: exit status %d: %s", code, stderr)
	}
	if code, stdout, stderr := ran(t, "checkpoint", "prune", "--admin-socket", socket, parent, "--older-than", "1m"); code != 0 || strings.Contains(stdout, waits) {
		t.Errorf("prune: exit status %d: %s%s", code, stdout, stderr)
	}
	test.Must(t, test.Err(os.Stat(waits)))
	test.Fails(t, test.Err(os.Stat(free)), "the unused checkpoint was not pruned")
	recovering := serveAdmin(t, &daemonOf{recovering: true})
	if code, _, stderr := ran(t, "checkpoint", "rm", waits, "--admin-socket", recovering); code != commandline.Failed || !strings.Contains(stderr, "try again") {
		t.Errorf("during the recovery: exit status %d: %s", code, stderr)
	}
	socket = serveAdmin(t, &daemonOf{})
	if code, stdout, stderr := ran(t, "checkpoint", "rm", waits, "--admin-socket", socket); code != 0 || stdout != "removed "+waits+"\n" {
		t.Errorf("exit status %d: %s%s", code, stdout, stderr)
	}
	again := checkpointIn(t, waits)
	if code, _, stderr := ran(t, "checkpoint", "rm", again, "--admin-socket", socket+".none"); code != 0 {
		t.Errorf("without a daemon: exit status %d: %s", code, stderr)
	}
}

// TestNamesOfCheckpoints: commands accept a name or a path. A named checkpoint stays until it is
// removed by its name or path.
func TestNamesOfCheckpoints(t *testing.T) {
	parent := t.TempDir()
	test.Must(t, os.Chmod(parent, 0o700))
	named := func(name string) string {
		dir := checkpointIn(t, test.Value(directory.Path(parent, "n", name, name, false, time.Now()))(t))
		test.Must(t, directory.Name(dir, name, false))
		return dir
	}
	web, used := named("shop/web"), named("used")
	free := checkpointIn(t, filepath.Join(parent, "free"))
	t.Setenv("BERTH_ADMIN_SOCKET", serveAdmin(t, &daemonOf{directory: parent, inUse: []string{used}}))
	t.Chdir(parent)
	for _, c := range []struct {
		line string
		code int
		want string
	}{
		{"checkpoint list", 0, web + " shop/web n p "},
		{"checkpoint list -o json", 0, `"name": "shop/web",`},
		{"checkpoint inspect shop/web", 0, "pod: n/p"},
		{"checkpoint inspect ./free", 0, "pod: n/p"},
		{"checkpoint inspect free", commandline.Failed, `no checkpoint has the name "free"; "berth checkpoint list" lists the checkpoints`},
		{"checkpoint inspect ../free", commandline.Failed, "no such file"},
		{"checkpoint inspect shop/../web", commandline.Failed, "cannot be a checkpoint's name"},
		{"checkpoint push none registry.test/x:1", commandline.Failed, `no checkpoint has the name "none"`},
		{"checkpoint pull registry.test/x:1 --as used", commandline.Failed, `has the name "used"; choose another`},
		{"checkpoint pull registry.test/x:1 --as registry.test/x", commandline.Failed, "cannot be a checkpoint's name"},
		{"checkpoint pull registry.test/x:1 ./x --as x", commandline.Mistaken, "either DIR or --as"},
		{"checkpoint pull registry.test/x:1", commandline.Mistaken, "either DIR or --as"},
		{"__complete checkpoint rm sh", 0, "shop/web\nused\n:0\n"},
		{"checkpoint prune --older-than 1m", 0, "removed " + free},
		{"checkpoint prune . --older-than 1m", 0, "nothing to remove"},
		{"checkpoint rm used shop/web", commandline.Failed, "removed shop/web"},
		{"checkpoint rm shop/web", commandline.Failed, `no checkpoint has the name "shop/web"`},
		{"checkpoint list -q", 0, used},
	} {
		if code, stdout, stderr := ran(t, strings.Fields(c.line)...); code != c.code || !strings.Contains(strings.Join(strings.Fields(stdout+stderr), " "), strings.Join(strings.Fields(c.want), " ")) {
			t.Errorf("%s: exit status %d: %s%s", c.line, code, stdout, stderr)
		}
	}
	test.Fails(t, test.Err(os.Lstat(web)), "the removed checkpoint exists")
	test.Must(t, test.Err(os.Lstat(used)))
}
