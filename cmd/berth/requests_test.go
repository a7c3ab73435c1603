package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-cri/berth/internal/commandline"
	"github.com/berth-cri/berth/internal/test"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// answering serves a management API with one handler and without GetStatus.
type answering struct {
	adminv1.UnimplementedAdminServer

	updated *adminv1.UpdateHandlerRequest
}

func (*answering) ListPulls(context.Context, *adminv1.ListPullsRequest) (*adminv1.ListPullsResponse, error) {
	return &adminv1.ListPullsResponse{}, nil
}

func (*answering) GetHandler(context.Context, *adminv1.GetHandlerRequest) (*adminv1.GetHandlerResponse, error) {
	return &adminv1.GetHandlerResponse{
		Handler: &adminv1.Handler{Name: "x", Managed: true},
		Written: []*adminv1.Setting{{Key: "a", Value: "1"}, {Key: "b", Value: "2"}},
	}, nil
}

func (d *answering) UpdateHandler(_ context.Context, req *adminv1.UpdateHandlerRequest) (*adminv1.UpdateHandlerResponse, error) {
	d.updated = req
	return &adminv1.UpdateHandlerResponse{Handler: &adminv1.Handler{Name: "x", State: adminv1.State_STATE_READY}}, nil
}

func TestPullsAreListedWithoutTheCRI(t *testing.T) {
	if code, _, stderr := ran(t, "image", "ls", "--pulling", "--admin-socket", serveAdmin(t, &answering{})); code != 0 {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

func TestCredentialsAreReadBeforeTheDaemonIsAsked(t *testing.T) {
	code, _, stderr := ran(t, "image", "pull", "--creds-file", "/none", "x", "--admin-socket", "/none")
	if code != commandline.Mistaken || !strings.Contains(stderr, "open /none: no such file") {
		t.Errorf("exit status %d: %s", code, stderr)
	}
}

func TestEditUnsetsWhatAFileLacks(t *testing.T) {
	d, file := &answering{}, filepath.Join(t.TempDir(), "x.toml")
	test.Must(t, os.WriteFile(file, []byte("a = 3\n"), 0o600))
	if code, _, stderr := ran(t, "handler", "edit", "x", "--from", file, "--admin-socket", serveAdmin(t, d)); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	if set := d.updated.GetSet(); len(set) != 1 || set[0].GetKey() != "a" || !slices.Equal(d.updated.GetUnset(), []string{"b"}) {
		t.Errorf("the update is %v", d.updated)
	}
}

func TestEditIsCancelledByAnEmptyFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for name, editor := range map[string]string{"emptied": ": >", "only comments": "sed -i -n /^#/p", "as before": ":"} {
		t.Setenv("VISUAL", editor)
		d := &answering{}
		code, stdout, stderr := ran(t, "handler", "edit", "x", "--admin-socket", serveAdmin(t, d))
		if code != 0 || !strings.HasPrefix(stdout, "nothing changed") || d.updated != nil {
			t.Errorf("%s: exit status %d: %s%s; the update is %v", name, code, stdout, stderr, d.updated)
		}
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("temporary files are left: %v (%v)", left, err)
	}
}
