package kubectl

import (
	"cmp"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/berth-cri/berth/integration/kubelet"
)

// fault is what becomes of the apply of one object, once.
type fault struct {
	path string
	// format is that of the patches that fail; empty for all.
	format string
	// user is whose kubeconfig it is; empty for the administrator's.
	user string
	// status is answered instead of the server's answer.
	status int
	// passed: the server gets the request, and the connection is cut before its answer.
	passed bool
	// held is called, and told when the client is gone, and the server gets nothing.
	held func(gone <-chan struct{})
	// dead: from then on nothing is answered.
	dead bool
}

// proxy stands before the server, and has one request fail. It returns a kubeconfig.
func (b *bed) proxy(t *testing.T, f fault) string {
	t.Helper()
	var struck atomic.Bool
	front := b.Front(t, func(pass http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hit := r.Method == http.MethodPatch && r.URL.Path == f.path && r.URL.Query().Get("dryRun") == "" &&
				(f.format == "" || r.Header.Get("Content-Type") == f.format)
			switch {
			case f.dead && struck.Load(), hit && f.dead:
				struck.Store(true)
				panic(http.ErrAbortHandler)
			case hit && f.held != nil && !struck.Swap(true):
				f.held(r.Context().Done())
				panic(http.ErrAbortHandler)
			case hit && f.passed && !struck.Swap(true):
				pass.ServeHTTP(httptest.NewRecorder(), r)
				panic(http.ErrAbortHandler)
			case hit && f.status != 0 && !struck.Swap(true):
				http.Error(w, "the test says no", f.status)
			default:
				pass.ServeHTTP(w, r)
			}
		})
	})
	t.Cleanup(func() {
		if !struck.Load() {
			t.Error("nothing was struck")
		}
	})
	return b.Kubeconfig(t, cmp.Or(f.user, kubelet.Admin), front)
}
