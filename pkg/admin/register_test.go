package admin_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// crun returns the request that registers the handler crun.
func (b *bed) crun(more ...*adminv1.Setting) *adminv1.RegisterHandlerRequest {
	return &adminv1.RegisterHandlerRequest{Name: "crun", Settings: append([]*adminv1.Setting{
		{Key: "runtime_path", Value: `"` + b.path("bin/crun") + `"`},
	}, more...)}
}

func (b *bed) plain() *adminv1.RegisterHandlerRequest { return b.crun() }

func TestRegisterUpdateRemove(t *testing.T) {
	b := newBed(t)
	registered := test.Value(b.RegisterHandler(t.Context(), b.crun(&adminv1.Setting{Key: "options.no_new_keyring", Value: "true"})))(t)
	if h := registered.GetHandler(); h.GetState() != adminv1.State_STATE_READY || !h.GetManaged() || registered.GetFile() != b.path("conf.d/50-crun.toml") {
		t.Errorf("registered: %v", registered)
	}
	text := b.read("conf.d/50-crun.toml")
	want := regexp.MustCompile(`^# Written by berth's management API for user 0, \d{4}-\d\d-\d\dT[\d:]+Z\.
# Change it by "berth handler edit crun", remove it by "berth handler rm crun"\.
\[runtimes\.crun\]
options\.no_new_keyring = true
runtime_path = "\$DIR/bin/crun"
$`)
	if !want.MatchString(text) {
		t.Errorf("the drop-in is\n%s", text)
	}

	updated, err := b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{
		Name: "crun", Set: []*adminv1.Setting{{Key: "snapshotter", Value: `"native"`}}, Unset: []string{"options.no_new_keyring"},
	})
	if err != nil || updated.GetHandler().GetDigest() == registered.GetHandler().GetDigest() {
		t.Errorf("updated: %v, %v", updated, err)
	}
	one, err := b.GetHandler(t.Context(), &adminv1.GetHandlerRequest{Name: "crun"})
	if err != nil || len(one.GetWritten()) != 2 || one.GetWritten()[1].GetKey() != "snapshotter" {
		t.Errorf("the written keys are %v, %v", one.GetWritten(), err)
	}

	b.node.run("a", "one", b.definition("crun"))
	removed, err := b.RemoveHandler(t.Context(), &adminv1.RemoveHandlerRequest{Name: "crun"})
	if err != nil || removed.GetPods() != 1 || b.read("conf.d/50-crun.toml") != "" {
		t.Errorf("removed: %v, %v", removed, err)
	}
	if h, err := b.manager.Handler("crun"); err != nil || h.Configured {
		t.Errorf("with a pod, the removed handler is %v, %v", h, err)
	}
	_, err = b.RemoveHandler(t.Context(), &adminv1.RemoveHandlerRequest{Name: "crun"})
	if e := b.failure(err); e.Code != codes.FailedPrecondition || !strings.Contains(e.Text, "already removed") {
		t.Errorf("second removal: %v %s", e.Code, e.Text)
	}
}

// A refused change leaves the file and the handlers as they were, and the error
// contains file, line and key.
func TestRefusedChangesLeaveNothing(t *testing.T) {
	b := newBed(t)
	before := b.manager.Current()
	_, err := b.RegisterHandler(t.Context(), b.crun(&adminv1.Setting{Key: "snapshoter", Value: `"native"`}))
	e := b.failure(err)
	if e.Code != codes.FailedPrecondition || !e.Invalid() || len(e.Problems) != 1 ||
		client.Line(e.Problems[0]) != b.path("conf.d/50-crun.toml")+`:5:1: runtimes.crun.snapshoter: unknown key (did you mean "snapshotter"?)` {
		t.Errorf("got %v: %s\n%v", e.Code, e.Text, e.Problems)
	}
	if _, err := os.Stat(b.path("conf.d")); !os.IsNotExist(err) {
		t.Errorf("the directory of drop-ins exists (%v)", err)
	}
	test.Fails(t, test.Err(b.manager.Handler("crun")), "the refused handler exists")
	if now := b.manager.Current(); now.Digest != before.Digest || now.Generation != before.Generation || now.Last != nil {
		t.Errorf("the configuration in force changed: %+v", now)
	}
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	text := b.read("conf.d/50-crun.toml")
	file := test.Value(os.Stat(b.path("conf.d/50-crun.toml")))(t)
	_, err = b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{Name: "crun", Set: []*adminv1.Setting{{Key: "snapshotter", Value: "1"}}})
	if e := b.failure(err); !e.Invalid() || b.read("conf.d/50-crun.toml") != text {
		t.Errorf("the file is now\n%s\n%s", b.read("conf.d/50-crun.toml"), e.Text)
	}
	if now, err := os.Stat(b.path("conf.d/50-crun.toml")); err != nil || !os.SameFile(now, file) || !now.ModTime().Equal(file.ModTime()) {
		t.Errorf("the file was written again (%v)", err)
	}

	// The default handler cannot be removed.
	b.write("config.toml", "default_runtime = \"crun\"\n[runtimes.runc]\nruntime_path = \"$DIR/bin/runc\"\n[handlers]\nwatch = false\n", 0o644)
	test.Must(t, test.Err(b.Reload(t.Context(), &adminv1.ReloadRequest{})))
	_, err = b.RemoveHandler(t.Context(), &adminv1.RemoveHandlerRequest{Name: "crun"})
	if e := b.failure(err); !e.Invalid() || b.read("conf.d/50-crun.toml") != text {
		t.Errorf("got %s, and the file is\n%s", e.Text, b.read("conf.d/50-crun.toml"))
	}
}

func TestRegisterWhatCannotBe(t *testing.T) {
	for what, c := range map[string]struct {
		prepare func(*bed)
		req     func(*bed) *adminv1.RegisterHandlerRequest
		code    codes.Code
		text    string
	}{
		"a name that no RuntimeClass can have": {nil, func(*bed) *adminv1.RegisterHandlerRequest {
			return &adminv1.RegisterHandlerRequest{Name: "../Crun"}
		}, codes.InvalidArgument, "not a DNS-1123 label"},
		"a handler of another file": {nil, func(*bed) *adminv1.RegisterHandlerRequest {
			return &adminv1.RegisterHandlerRequest{Name: "runc"}
		}, codes.AlreadyExists, "at $DIR/config.toml:2"},
		"a file of an operator": {func(b *bed) { b.write("conf.d/50-crun.toml", "# mine\n", 0o644) },
			(*bed).plain, codes.AlreadyExists, "$DIR/conf.d/50-crun.toml exists; edit it by hand"},
		"a file of a vendor": {func(b *bed) { b.write("vendor/50-crun.toml", "", 0o644) },
			(*bed).plain, codes.AlreadyExists, "$DIR/vendor/50-crun.toml exists"},
		"two keys in one value": {nil, func(b *bed) *adminv1.RegisterHandlerRequest {
			return b.crun(&adminv1.Setting{Key: "snapshotter", Value: "\"native\"\n[server]"})
		}, codes.InvalidArgument, "several lines"},
		"no path": {nil, func(*bed) *adminv1.RegisterHandlerRequest {
			return &adminv1.RegisterHandlerRequest{Name: "crun"}
		}, codes.FailedPrecondition, "runtime_path is missing"},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBed(t)
			if c.prepare != nil {
				c.prepare(b)
			}
			before := b.read("conf.d/50-crun.toml")
			_, err := b.RegisterHandler(t.Context(), c.req(b))
			if e := b.failure(err); e.Code != c.code || !strings.Contains(e.Text, c.text) {
				t.Errorf("got %v: %s", e.Code, e.Text)
			}
			test.Equal(t, "the file", b.read("conf.d/50-crun.toml"), before)
		})
	}
}

func TestOtherFilesAreNotTouched(t *testing.T) {
	b := newBed(t)
	b.write("conf.d/50-crun.toml", "[runtimes.crun]\nruntime_path = \"$DIR/bin/crun\"\n", 0o644)
	test.Must(t, test.Err(b.Reload(t.Context(), &adminv1.ReloadRequest{})))
	for name, origin := range map[string]string{"runc": "$DIR/config.toml:2", "crun": "$DIR/conf.d/50-crun.toml:1"} {
		_, err := b.RemoveHandler(t.Context(), &adminv1.RemoveHandlerRequest{Name: name})
		if e := b.failure(err); e.Code != codes.FailedPrecondition || !strings.Contains(e.Text, "edit "+origin) {
			t.Errorf("rm %s: %v %s", name, e.Code, e.Text)
		}
		_, err = b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{Name: name})
		if e := b.failure(err); e.Code != codes.FailedPrecondition || !strings.Contains(e.Text, "edit "+origin) {
			t.Errorf("edit %s: %v %s", name, e.Code, e.Text)
		}
	}
	if b.read("conf.d/50-crun.toml") == "" {
		t.Error("the file of an operator was removed")
	}
}

func TestUpdateOfAKeyThatIsNotThere(t *testing.T) {
	b := newBed(t)
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	_, err := b.UpdateHandler(t.Context(), &adminv1.UpdateHandlerRequest{Name: "crun", Unset: []string{"snapshotter"}})
	if e := b.failure(err); e.Code != codes.InvalidArgument || !strings.Contains(e.Text, `no key "snapshotter"; it has runtime_path`) {
		t.Errorf("got %v: %s", e.Code, e.Text)
	}
}

// The temporary file of a daemon that was killed during a write does not block the next one.
func TestLeftoversOfAKill(t *testing.T) {
	b := newBed(t)
	b.write("conf.d/.50-crun.toml.new", "[runtimes.cr", 0o644)
	test.Must(t, test.Err(b.RegisterHandler(t.Context(), b.crun())))
	if b.read("conf.d/.50-crun.toml.new") != "" {
		t.Error("the temporary file still exists")
	}
}

// Of concurrent registrations of one name, one succeeds and the others fail with
// AlreadyExists. Registrations of different names all succeed.
func TestRegisteringAtOnce(t *testing.T) {
	b := newBed(t)
	const many = 4
	errs := make([]error, 2*many)
	var all sync.WaitGroup
	for i := range errs {
		req := b.crun()
		if i >= many {
			req.Name = fmt.Sprintf("crun-%d", i)
		}
		all.Go(func() { _, errs[i] = b.RegisterHandler(t.Context(), req) })
	}
	all.Wait()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil && i < many:
			won++
		case i >= many && err != nil:
			t.Errorf("crun-%d: %v", i, err)
		case i < many && b.failure(err).Code != codes.AlreadyExists:
			t.Errorf("registration of the same name: %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d registrations of one name succeeded", won)
	}
	if got := len(b.manager.Handlers()); got != many+2 {
		t.Errorf("there are %d handlers", got)
	}
}
