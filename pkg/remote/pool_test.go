package remote

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/handler"
	"github.com/berth-cri/berth/pkg/remote/lastknown"
)

func newPool(t *testing.T, dir string) *Pool {
	t.Helper()
	p := test.Value(NewPool(context.Background(), PoolOptions{
		Dir: dir, Instance: "me", ListTimeout: time.Second, Changed: func(*Backend) {},
		CgroupDriver: func(context.Context) (runtimeapi.CgroupDriver, error) { return runtimeapi.CgroupDriver_CGROUPFS, nil },
	}))(t)
	t.Cleanup(func() { test.Check(t, p.Close()) })
	return p
}

// force puts handlers in force, as a new table does.
func force(t *testing.T, p *Pool, definitions ...*handler.Definition) {
	t.Helper()
	for _, d := range definitions {
		test.Must(t, test.Err(p.For(d)))
	}
	test.Must(t, p.Record(definitions))
	p.SetInForce(definitions)
	for _, b := range p.TakeUnused() {
		test.Check(t, p.Discard(b))
	}
}

func leads(name string, d *daemon) *handler.Definition {
	return &handler.Definition{Name: name, Type: handler.CRI, Endpoint: d.path, RemoteHandler: "runc"}
}

// run creates a pod of a handler.
func run(t *testing.T, p *Pool, d *handler.Definition) (id string) {
	t.Helper()
	b := test.Value(p.For(d))(t)
	isReady(t, b)
	resp := test.Value(b.RunPodSandbox(handler.WithDefinition(t.Context(), d), &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{}}))(t)
	return resp.GetPodSandboxId()
}

// reread decodes a message that carries an undecoded response.
func reread[M proto.Message](t *testing.T, carried proto.Message, to M) M {
	t.Helper()
	content, err := proto.Marshal(carried)
	if err == nil {
		err = proto.Unmarshal(content, to)
	}
	test.Must(t, err)
	return to
}

// The daemon of a checked handler is kept until the handler is put in force, even if
// other handlers are put in force before.
func TestACheckedDaemonStays(t *testing.T) {
	d, p := newDaemon(t), newPool(t, t.TempDir())
	legacy := leads("legacy", d)
	test.Must(t, test.Err(p.Check(t.Context(), legacy)))
	force(t, p)
	if all := p.All(); len(all) != 1 || all[0].Health().Phase != Ready {
		t.Fatalf("after a check, the daemons are %v", all)
	}
	force(t, p, legacy)
	force(t, p)
	if all := p.All(); len(all) != 0 {
		t.Errorf("%s is kept although no handler uses it", all[0].ID())
	}
}

// Checks run while the handler is put in force and removed: a check never uses a
// discarded Backend, and discarding it does not remove the files of the next
// Backend for the same daemon.
func TestChecksWhileDaemonsComeAndGo(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	p, legacy := newPool(t, dir), leads("legacy", d)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := p.Check(t.Context(), legacy); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for ctx.Err() == nil {
		force(t, p, legacy)
		p.mu.Lock() // as if the last check was long ago
		p.all[d.path].checkedAt = time.Time{}
		p.mu.Unlock()
		force(t, p)
	}
	all.Wait()
	force(t, p, legacy)
	run(t, p, legacy)
	test.Must(t, p.Close())
	d.server.Stop()
	again := newPool(t, dir)
	if got := again.All(); len(got) != 1 || len(got[0].Inventory()) != 1 {
		t.Errorf("after a restart, the daemons are %v", got)
	}
}

// A daemon that no handler uses is kept until its last pod is removed.
func TestADaemonWithPodsStays(t *testing.T) {
	d, p := newDaemon(t), newPool(t, t.TempDir())
	legacy := leads("legacy", d)
	force(t, p, legacy)
	id := run(t, p, legacy)
	force(t, p)
	b := p.All()[0]
	test.Check(t, test.Err(b.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})))
	b.creating.Add(1)
	test.Must(t, test.Err(b.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})))
	if gone := p.TakeUnused(); len(gone) != 0 {
		t.Error("the daemon is unused although a pod is being created")
	}
	b.creating.Add(-1)
	force(t, p)
	if p.Has(b) {
		t.Error("the daemon is kept although nothing uses it")
	}
}

// Stranded reports pods of a daemon that is down and that no handler uses.
func TestStrandedPodsAreToldOf(t *testing.T) {
	d, p := newDaemon(t), newPool(t, t.TempDir())
	legacy := leads("legacy", d)
	force(t, p, legacy)
	_ = run(t, p, legacy)
	d.server.Stop()
	b := p.All()[0]
	test.Eventually(t, "down", func() bool { return b.Health().Phase == Down })
	if texts := p.Stranded(); len(texts) != 0 {
		t.Errorf("a handler uses the daemon, but reported: %q", texts)
	}
	force(t, p)
	if texts := p.Stranded(); len(texts) != 1 || !strings.Contains(texts[0], "pods that cannot be reached: 1; no handler uses the CRI daemon at "+d.path+" any more, and it is down: ") {
		t.Errorf("reported: %q", texts)
	}
	d.start(t)
	test.Eventually(t, "back", func() bool { return b.Health().Phase == Ready })
	if texts := p.Stranded(); len(texts) != 0 {
		t.Errorf("the daemon is ready, but reported: %q", texts)
	}
}

// Pods of a daemon's other handlers count for the handler of its default, or for the first by name.
func TestWhoHasThePodsOfOtherHandlers(t *testing.T) {
	for _, c := range []struct {
		handlers []lastknown.Handler
		want     string
	}{
		{nil, ""},
		{[]lastknown.Handler{{Name: "b", Remote: "crun"}, {Name: "a", Remote: "runc"}}, "a"},
		{[]lastknown.Handler{{Name: "b", Remote: ""}, {Name: "a", Remote: "runc"}}, "b"},
		{[]lastknown.Handler{{Name: "c", Remote: ""}, {Name: "b", Remote: ""}, {Name: "a", Remote: "runc"}}, "b"},
	} {
		test.Equal(t, fmt.Sprint(c.handlers), translationOf(c.handlers).first, c.want)
	}
}

// A pod keeps the name of its handler in inventories and lists, also after a restart,
// if another handler begins to use the same handler of the daemon.
func TestPodsKeepTheirHandler(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	p := newPool(t, dir)
	legacy, second, renamed := leads("legacy", d), leads("second", d), leads("a-new-name", d)
	force(t, p, legacy, second)
	want := map[string]string{run(t, p, legacy): "legacy", run(t, p, second): "second"}
	look := func(when string, p *Pool) {
		t.Helper()
		b := test.Value(p.For(legacy))(t)
		got := map[string]string{}
		for _, o := range b.Inventory() {
			got[o.Sandbox] = o.Handler
		}
		isReady(t, b)
		listed := test.Value(b.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}))(t)
		for _, one := range reread(t, listed, &runtimeapi.ListPodSandboxResponse{}).GetItems() {
			test.Equal(t, fmt.Sprintf("%s: a pod of %s is listed as one of", when, want[one.GetId()]), one.GetRuntimeHandler(), want[one.GetId()])
		}
		for id, name := range want {
			resp := test.Value(b.PodSandboxStatus(t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id}))(t)
			said := reread(t, resp, &runtimeapi.PodSandboxStatusResponse{}).GetStatus().GetRuntimeHandler()
			if got[id] != name || said != name {
				t.Errorf("%s: a pod of %s is in the inventory as one of %s, and its status has %s", when, name, got[id], said)
			}
		}
	}
	look("at first", p)
	force(t, p, renamed)
	want[run(t, p, renamed)] = "a-new-name"
	look("under another name", p)
	test.Must(t, p.Close())
	p = newPool(t, dir)
	force(t, p, renamed)
	look("after a restart", p)
}

// If Record fails, the handlers of the record from the last run stay in force.
func TestHandlersOfARecordComeBackWhenOthersCannotBeKept(t *testing.T) {
	one, two, dir := newDaemon(t), newDaemon(t), t.TempDir()
	first := newPool(t, dir)
	force(t, first, leads("a", one), leads("b", two))
	test.Must(t, first.Close())
	p := newPool(t, dir)
	for _, b := range p.All() {
		if b.endpoint == two.path {
			next := filepath.Join(dir, "."+filepath.Base(b.state.Path)+".new", "x") // blocks the temporary file of its state
			test.Must(t, os.MkdirAll(next, 0o700))
			t.Cleanup(func() { _ = os.RemoveAll(filepath.Dir(next)) })
		}
	}
	for range 20 { // for both orders of the daemons
		if err := p.Record([]*handler.Definition{leads("c", one), leads("d", two)}); err == nil {
			t.Fatal("a record was written although its file is blocked")
		}
	}
	for _, b := range p.All() {
		want := map[string]string{one.path: "a", two.path: "b"}[b.endpoint]
		if got := b.recorded(); len(got) != 1 || got[0].Name != want || b.names.ours("runc") != want {
			t.Errorf("%s: the record is %v, the handler of its pods %q", b.endpoint, got, b.names.ours("runc"))
		}
	}
}

// Damaged files are ignored; the daemons of the other files are known.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	d := newDaemon(t)
	test.Must(t, opened(t, filepath.Join(dir, "good"+lastknown.Suffix)).SetRecord(lastknown.Record{Endpoint: d.path, Handlers: []lastknown.Handler{{Name: "legacy", Remote: "runc"}}}))
	for name, content := range map[string]string{"empty": "", "nothing": `{"format": 1}`, "relative": `{"format": 1, "record": {"endpoint": "x.sock"}}`, "cut": `{"form`, "other": `{"format": 2}`} {
		test.Must(t, os.WriteFile(filepath.Join(dir, name+lastknown.Suffix), []byte(content), 0o600))
	}
	if all := newPool(t, dir).All(); len(all) != 1 || all[0].endpoint != d.path {
		t.Errorf("the daemons are %v", all)
	}
}

// A file that cannot be read may be undamaged, so berth must not overwrite it.
func TestAStateFileThatCannotBeReadIsLeftAlone(t *testing.T) {
	d, dir := newDaemon(t), t.TempDir()
	var path string
	t.Run("before", func(t *testing.T) { path = connect(t, d, dir).state.Path }) // closed at the end of the subtest
	test.Must(t, os.Remove(path))
	test.Must(t, os.Symlink(filepath.Base(path), path))
	test.Says(t, test.Err(newBackend(backendOptions{Endpoint: d.path, Dir: dir, Instance: "me", ListTimeout: time.Second, Changed: func() {}})), path)
}

func TestADamagedStateFileStopsNothing(t *testing.T) {
	for name, content := range map[string][]byte{
		"empty": nil, "zeros": make([]byte, 4096), "incomplete": []byte(`{"format": 1, "sandboxes": "CgM`),
		"a broken list": []byte(`{"format": 1, "sandboxes": "CA=="}`), "broken text": []byte(`{"format": 1, "sandboxes": "CgMKAf8="}`),
		"no format": []byte(`{"sandboxes": "CgMKAXA="}`), "a later format": []byte(`{"format": 2, "sandboxes": "CgMKAXA="}`),
	} {
		d := newDaemon(t)
		dir := t.TempDir()
		var path string
		t.Run("before "+name, func(t *testing.T) { path = connect(t, d, dir).state.Path }) // closed at the end of the subtest
		test.Must(t, os.WriteFile(path, content, 0o600))
		if _, damage, err := lastknown.Open(path); err != nil || damage == nil || len(damage.Error()) > 1000 {
			t.Errorf("%s: error %v, damage %.300v", name, err, damage)
		}
		test.Must(t, os.WriteFile(path, content, 0o600))
		b := connect(t, d, dir)
		if got := b.Inventory(); len(got) != 0 {
			t.Errorf("%s: the inventory is %v", name, got)
		}
		isReady(t, b)
	}
}
