package shim

import (
	"os"
	"strings"
	"testing"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/berth-cri/berth/internal/test"
)

func TestParseEndpoint(t *testing.T) {
	wire := test.Value(proto.Marshal(&bootapi.BootstrapResult{Version: 3, Address: "unix:///run/s/x", Protocol: "ttrpc"}))(t)
	for name, tc := range map[string]struct {
		out  string
		want Endpoint
		bad  bool
	}{
		"protobuf":      {string(wire), Endpoint{Address: "unix:///run/s/x", Protocol: "ttrpc", Version: 3}, false},
		"json":          {`{"version":3,"address":"unix:///run/s/y","protocol":"ttrpc"}` + "\n", Endpoint{Address: "unix:///run/s/y", Protocol: "ttrpc", Version: 3}, false},
		"bare address":  {"unix:///run/s/z\n", Endpoint{Address: "unix:///run/s/z", Protocol: "ttrpc", Version: 2}, false},
		"nothing":       {"", Endpoint{}, true},
		"an error text": {"cannot start: no such file", Endpoint{}, true},
		"json, too old": {`{"version":1,"address":"unix:///x"}`, Endpoint{}, true},
		"long nonsense": {strings.Repeat("x", 5000), Endpoint{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseEndpoint([]byte(tc.out))
			if (err != nil) != tc.bad || got != tc.want {
				t.Errorf("got %+v, %v", got, err)
			}
			if err != nil && len(err.Error()) > 1024 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

func FuzzParseEndpoint(f *testing.F) {
	f.Add([]byte("unix:///run/s/z"))
	f.Add([]byte(`{"version":3,"address":"unix:///run/s/y","protocol":"ttrpc"}`))
	f.Fuzz(func(t *testing.T, out []byte) {
		ep, err := parseEndpoint(out)
		if err == nil && ep.Address == "" {
			t.Errorf("%q gave an endpoint without address", out)
		}
	})
}

// A supervisor that dies at once must not be started in a loop.
func TestPauseGrowsForShortLives(t *testing.T) {
	s := &supervisor{}
	now := time.Now()
	test.Equal(t, "the wait before the first start", s.pause(now), 0)
	s.started = now
	if d := s.pause(now.Add(time.Millisecond)); d <= 0 || d > minDelay {
		t.Errorf("after a death at once the next start waits %s", d)
	}
	s.delay = maxDelay
	test.Equal(t, "the wait after repeated deaths", s.pause(now.Add(time.Second)), maxDelay-time.Second)
	if d := s.pause(now.Add(time.Hour)); d != 0 || s.delay != 0 {
		t.Errorf("after a long life the start waits %s, delay %s", d, s.delay)
	}
}

func openFiles(t *testing.T) int {
	t.Helper()
	entries := test.Value(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}

func TestKeeperLendsDuplicatesAndClosesAll(t *testing.T) {
	before := openFiles(t)
	k := newKeeper()
	put := func(id string) {
		fd := test.Value(unix.PidfdOpen(os.Getpid(), 0))(t)
		k.put("key", id, &keptFiles{pidfd: os.NewFile(uintptr(fd), "pidfd")})
	}
	put("a")
	put("a") // replaces, and must not leak
	put("b")
	files, which, release := k.lend("key", 4)
	if len(files) != 2 || len(which) != 2 {
		t.Fatalf("lent %d files, %v", len(files), which)
	}
	seen := map[int]bool{}
	for id, i := range which {
		if i.Pidfd < 4 || i.Pidfd >= 6 || seen[i.Pidfd] || i.TTY != 0 {
			t.Errorf("the descriptors of %s are %+v", id, i)
		}
		seen[i.Pidfd] = true
	}
	if files, which, _ := k.lend("other", 4); len(files)+len(which) != 0 {
		t.Errorf("another supervisor would get %v", which)
	}
	release()
	k.drop("key", "a")
	k.drop("key", "a")
	k.close()
	if after := openFiles(t); after != before {
		t.Errorf("%d files are open, %d before", after, before)
	}
}
