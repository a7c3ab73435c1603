package image

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/sirupsen/logrus"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/bounds"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

// tracing returns a context, and a buffer with the context's log of all levels.
func tracing(t testing.TB) (context.Context, *lockedBuffer) {
	t.Helper()
	buf := &lockedBuffer{}
	l := logrus.New()
	l.SetOutput(buf)
	l.SetLevel(log.TraceLevel)
	return log.WithLogger(t.Context(), logrus.NewEntry(l)), buf
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

const (
	user     = "kubelet"
	password = "correct-horse-battery"
	idToken  = "identity-token-of-kubelet"
)

func basic(user, password string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

func TestPullAuthentication(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", build(t, v1.Config{}, layer(t, file{name: "f", body: "1"})))
	guards := map[string]func(http.ResponseWriter, *http.Request) bool{
		"basic":  basicAuth(user, password),
		"bearer": bearerAuth(reg, user, password, idToken),
	}
	cases := []struct {
		name   string
		auth   *runtimeapi.AuthConfig
		basic  bool
		bearer bool
	}{
		{"none", nil, false, false},
		{"empty", &runtimeapi.AuthConfig{}, false, false},
		{"user and password", &runtimeapi.AuthConfig{Username: user, Password: password}, true, true},
		{"wrong password", &runtimeapi.AuthConfig{Username: user, Password: "wrong-" + password}, false, false},
		{"base64", &runtimeapi.AuthConfig{Auth: basic(user, password)}, true, true},
		{"user before base64", &runtimeapi.AuthConfig{Username: user, Password: password, Auth: basic(user, "wrong")}, true, true},
		{"identity token", &runtimeapi.AuthConfig{IdentityToken: idToken}, false, true},
		{"identity token before base64", &runtimeapi.AuthConfig{IdentityToken: "wrong-" + idToken, Auth: basic(user, password)}, false, false},
		{"for this server", &runtimeapi.AuthConfig{Username: user, Password: password, ServerAddress: "https://" + reg.addr() + "/v2/"}, true, true},
		{"for another server", &runtimeapi.AuthConfig{Username: user, Password: password, ServerAddress: "https://elsewhere.test"}, false, false},
	}
	for scheme, guard := range guards {
		reg.setGuard(guard)
		// All cases share one store: wrong credentials must fail even after another case has
		// downloaded the blobs.
		s := openStore(t, Config{HostsDir: reg.hosts(t)})
		for _, c := range cases {
			t.Run(scheme+"/"+c.name, func(t *testing.T) {
				ctx, logged := tracing(t)
				_, err := s.Pull(ctx, pull.Request{Ref: app, Auth: c.auth})
				want := scheme == "basic" && c.basic || scheme == "bearer" && c.bearer
				if want && err != nil {
					t.Errorf("refused: %v", err)
				}
				if !want && !errdefs.IsPermissionDenied(err) {
					t.Errorf("error %v, want permission denied", err)
				}
				if err != nil && (!strings.Contains(err.Error(), "imagePullSecrets") || len(err.Error()) > 1024) {
					t.Errorf("the error is too long or does not name imagePullSecrets: %v", err)
				}
				text := fmt.Sprintf("%s %+v", logged, err)
				for _, secret := range []string{password, idToken, basic(user, password), "token-of-the-test"} {
					if strings.Contains(text, secret) {
						t.Errorf("%q is in the log or the error:\n%s", secret, text)
					}
				}
				if !strings.Contains(text, "resolving") {
					t.Error("the searched log has no messages of the pull")
				}
			})
		}
	}
}

func TestPullRefusesCredentialsItCannotUse(t *testing.T) {
	s := openStore(t, Config{})
	for name, auth := range map[string]*runtimeapi.AuthConfig{
		"registry token": {RegistryToken: "secret-token"},
		"not base64":     {Auth: "secret!!"},
		"no colon":       {Auth: base64.StdEncoding.EncodeToString([]byte("secret"))},
	} {
		_, err := s.Pull(t.Context(), pull.Request{Ref: app, Auth: auth})
		if !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error is %v, want an invalid argument without the secret", name, err)
		}
	}
}

// A pod's credentials replace those of the node's configuration, except for a mirror with its own.
func TestCredentialsOfTheRequestPrevail(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	reg.setGuard(basicAuth(user, password))
	header := func(password string) string {
		return fmt.Sprintf("[header]\nAuthorization = %q", "Basic "+basic(user, password))
	}
	right, wrong := &runtimeapi.AuthConfig{Username: user, Password: password}, &runtimeapi.AuthConfig{Username: user, Password: "wrong"}
	elsewhere := &runtimeapi.AuthConfig{Username: user, Password: "wrong", ServerAddress: "elsewhere.test"}
	mirror := fmt.Sprintf("server = \"https://%s\"\n[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\nca = %q\n[host.%q.header]\nAuthorization = %q\n",
		deadAddress(t), reg.URL, reg.ca, reg.URL, "Basic "+basic(user, password))
	for name, c := range map[string]struct {
		hosts string
		auth  *runtimeapi.AuthConfig
		works bool
	}{
		"no credentials":                     {reg.hosts(t, header(password)), nil, true},
		"empty credentials":                  {reg.hosts(t, header(password)), &runtimeapi.AuthConfig{}, true},
		"wrong credentials and right header": {reg.hosts(t, header(password)), wrong, false},
		"right credentials and wrong header": {reg.hosts(t, header("wrong")), right, true},
		"credentials for another server":     {reg.hosts(t, header(password)), elsewhere, true},
		"mirror with its own header":         {writeHosts(t, domain, mirror), wrong, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, Config{HostsDir: c.hosts})
			ctx, logged := tracing(t)
			img, err := s.Pull(ctx, pull.Request{Ref: app, Auth: c.auth})
			if c.works && (err != nil || !slices.Equal(img.RepoTags, []string{app})) {
				t.Errorf("the pull failed, or the image is named after the mirror: %v, %+v", err, img)
			}
			if !c.works && !errdefs.IsPermissionDenied(err) {
				t.Errorf("error %v, want permission denied", err)
			}
			if strings.Contains(logged.String(), basic(user, password)) {
				t.Error("the header is in the log")
			}
		})
	}
}

// deadAddress returns an address of this machine that refuses connections.
func deadAddress(t testing.TB) string {
	t.Helper()
	l := test.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return l.Addr().String()
}

// A registry on localhost needs no configuration, so the log has no advice on TLS.
func TestPullFromLocalhostAdvisesNothing(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	ctx, logged := tracing(t)
	test.Must(t, test.Err(openStore(t, Config{}).Pull(ctx, pull.Request{Ref: strings.TrimPrefix(reg.back.URL, "http://") + "/app:1"})))
	if text := logged.String(); !strings.Contains(text, "Image pulled") || strings.Contains(text, "TLS") {
		t.Errorf("the log advises on TLS, or lacks the pull:\n%s", text)
	}
}

func TestPullErrors(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	reg.push(t, "broken:1", build(t, v1.Config{}, layer(t, file{name: "f", link: "nowhere"}), layer(t, file{name: "g"})))
	answer := func(code int) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(code); return true }
	}
	dead := deadAddress(t)
	cases := []struct {
		name  string
		ref   string
		hosts string
		guard func(http.ResponseWriter, *http.Request) bool
		class func(error) bool
		begin string
		text  string
	}{
		{"no such image", domain + "/nothing:1", reg.hosts(t), nil, errdefs.IsNotFound, "pull ", "check name and tag"},
		{"no such tag", domain + "/app:2", reg.hosts(t), nil, errdefs.IsNotFound, "pull ", "check name and tag"},
		{"refused connection", app, writeHosts(t, domain, `server = "https://`+dead+`"`), nil, errdefs.IsUnknown, "RegistryUnavailable", "cannot reach registry"},
		{"unknown registry", "no-such-registry.invalid/app:1", reg.hosts(t), nil, errdefs.IsUnknown, "RegistryUnavailable", "no-such-registry.invalid/hosts.toml"},
		{"unknown CA", app, writeHosts(t, domain, `server = "`+reg.URL+`"`), nil, errdefs.IsFailedPrecondition, "pull ", "hosts.toml with ca"},
		{"server error", app, reg.hosts(t), answer(http.StatusBadGateway), errdefs.IsUnknown, "RegistryUnavailable", "502"},
		{"too many requests", app, reg.hosts(t), answer(http.StatusTooManyRequests), errdefs.IsUnavailable, "pull ", "limits"},
		{"forbidden", app, reg.hosts(t), answer(http.StatusForbidden), errdefs.IsPermissionDenied, "pull ", "denies access"},
		{"bad name", "Not A Name", "", nil, errdefs.IsInvalidArgument, "image name", "Not A Name"},
		{"ID instead of a name", strings.Repeat("ab", 32), "", nil, errdefs.IsInvalidArgument, "image name", ""},
		// This error must not be reported as an error of the network.
		{"hard link to nothing", domain + "/broken:1", reg.hosts(t), nil, errdefs.IsUnknown, "pull ", "no such file or directory"},
		{"truncated layer", app, reg.hosts(t), truncateBlobs, errdefs.IsUnknown, "RegistryUnavailable", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			reg.setGuard(c.guard)
			s := openStore(t, Config{HostsDir: c.hosts})
			_, err := s.Pull(t.Context(), pull.Request{Ref: c.ref})
			if err == nil || !c.class(err) {
				t.Fatalf("error %v of class %v", err, errdefs.Resolve(err))
			}
			if !strings.HasPrefix(err.Error(), c.begin) || !strings.Contains(err.Error(), c.text) || len(err.Error()) > 1024 {
				t.Errorf("the error is %v; want it to begin with %q and to contain %q", err, c.begin, c.text)
			}
			wantNothingKept(t, s)
		})
	}
}

// truncateBlobs closes the connection in the middle of every blob.
func truncateBlobs(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
		return false
	}
	w.Header().Set("Content-Length", "100000")
	if _, err := w.Write([]byte("beginning")); err != nil {
		panic(err)
	}
	w.(http.Flusher).Flush()
	panic(http.ErrAbortHandler)
}

func TestRedirectedDownloadKeepsSignatureSecret(t *testing.T) {
	reg, s := serve(t, Config{}, small(t))
	dead := deadAddress(t)
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		http.Redirect(w, r, "https://"+dead+"/blob?X-Signature=signed-and-secret", http.StatusTemporaryRedirect)
		return true
	})
	ctx, logged := tracing(t)
	_, err := s.Pull(ctx, pull.Request{Ref: app})
	if err == nil || strings.Contains(err.Error(), "signed-and-secret") || !strings.Contains(err.Error(), dead) {
		t.Errorf("the error is %v, want one with %s and without the signature", err, dead)
	}
	if strings.Contains(logged.String(), "signed-and-secret") {
		t.Errorf("the log has the signature:\n%s", logged)
	}
}

// gate holds requests for blobs until open is closed.
type gate struct {
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate() *gate { return &gate{reached: make(chan struct{}), open: make(chan struct{})} }

func (g *gate) guard(_ http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") {
		g.once.Do(func() { close(g.reached) })
		select {
		case <-g.open:
		case <-r.Context().Done():
		}
	}
	return false
}

func TestConcurrentPullsShareOneDownload(t *testing.T) {
	built := layered(t, v1.Config{})
	reg, s := serve(t, Config{}, built)
	g := newGate()
	reg.setGuard(g.guard)

	var wg sync.WaitGroup
	errs := make([]error, 8)
	for i := range errs {
		wg.Go(func() {
			img, err := s.Pull(t.Context(), pull.Request{Ref: app})
			if err == nil && img.ID != idOf(t, built) {
				err = errors.New("wrong image " + img.ID)
			}
			errs[i] = err
		})
	}
	<-g.reached
	// A ninth caller cancels its pull, which must not affect the other callers.
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() {
		_, err := s.Pull(ctx, pull.Request{Ref: app})
		left <- err
	}()
	cancel()
	test.ErrorIs(t, <-left, context.Canceled, "the cancelled pull")
	close(g.open)
	wg.Wait()
	test.Check(t, errors.Join(errs...))
	if m, b, h := reg.count("GET", "/manifests/"), reg.count("GET", "/blobs/"), reg.count("HEAD", ""); m != 1 || b != 4 || h != 1 {
		t.Errorf("%d GETs of manifests, %d of blobs, %d HEADs; want 1, 4, 1", m, b, h)
	}
}

func TestCredentialsAreNotShared(t *testing.T) {
	reg, s := serve(t, Config{}, small(t))
	g := newGate()
	allow := basicAuth(user, password)
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool { return allow(w, r) || g.guard(w, r) })
	done := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), pull.Request{Ref: app, Auth: &runtimeapi.AuthConfig{Username: user, Password: password}})
		done <- err
	}()
	<-g.reached
	test.Is(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app})), errdefs.IsPermissionDenied, "anonymous caller beside a pull with credentials")
	close(g.open)
	test.Must(t, <-done)
}

func TestPullsOfSharedLayersFetchThemOnce(t *testing.T) {
	reg := newTestRegistry(t)
	base := layer(t, file{name: "base", body: strings.Repeat("b", 100_000)})
	h := test.Value(base.Digest())(t)
	for _, app := range []string{"a", "b", "c"} {
		reg.push(t, app+":1", build(t, v1.Config{}, base, layer(t, file{name: app})))
	}
	s := openStore(t, Config{HostsDir: reg.hosts(t)})
	var wg sync.WaitGroup
	for _, app := range []string{"a", "b", "c"} {
		wg.Go(func() { pullImage(t, s, domain+"/"+app+":1") })
	}
	wg.Wait()
	if n := reg.count("GET", h.String()); n != 1 {
		t.Errorf("the shared layer was fetched %d times", n)
	}
	if len(s.List()) != 3 {
		t.Errorf("there are %d images, want 3", len(s.List()))
	}
}

// A pull that is interrupted returns the reason, and keeps only content for the next pull of the
// image. The next pull succeeds.
func TestPullsThatEnd(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		end     func(s *Store, cancel func())
		is      func(error) bool
	}{
		"cancelled": {0, func(_ *Store, cancel func()) { cancel() }, func(err error) bool { return errors.Is(err, context.Canceled) }},
		"closed":    {0, func(s *Store, _ func()) { test.Must(t, s.Close()) }, errdefs.IsUnavailable},
		"stalled": {200 * time.Millisecond, func(*Store, func()) {}, func(err error) bool {
			return errdefs.IsUnknown(err) && strings.HasPrefix(err.Error(), "RegistryUnavailable") && strings.Contains(err.Error(), "pull_progress_timeout")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			reg, s := serve(t, Config{PullProgressTimeout: c.timeout}, layered(t, v1.Config{}))
			g := newGate()
			reg.setGuard(g.guard)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error)
			go func() {
				_, err := s.Pull(ctx, pull.Request{Ref: app})
				done <- err
			}()
			<-g.reached
			c.end(s, cancel)
			if err := <-done; !c.is(err) {
				t.Errorf("the interrupted pull returned %v", err)
			}
			if name == "closed" {
				s = openStore(t, s.cfg)
			}
			// One lease stays: it keeps downloaded content for the next pull.
			test.Eventually(t, "the download has ended, and one lease is left", func() bool { return s.Running() == 0 && leasesLeft(t, s) == 1 })
			wantNothingKept(t, s)
			close(g.open)
			pullImage(t, s, app)
		})
	}
}

func TestAnswersThatDrip(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", layered(t, v1.Config{}))
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		for r.Method == http.MethodGet && r.Context().Err() == nil {
			_, _ = io.WriteString(w, " ")
			w.(http.Flusher).Flush()
			time.Sleep(10 * time.Millisecond) // a slow registry, over TCP
		}
		return false
	})
	s := openStore(t, Config{HostsDir: reg.hosts(t), Limits: bounds.Limits{AnswerTimeout: 300 * time.Millisecond}})
	_, err := s.Pull(t.Context(), pull.Request{Ref: domain + "/app:1"})
	if !errdefs.IsUnknown(err) || !strings.HasPrefix(err.Error(), "RegistryUnavailable") || !strings.Contains(err.Error(), "takes too long") {
		t.Errorf("the pull of a manifest that comes byte by byte returned %v", err)
	}
}

func TestSlowRegistryIsNoStall(t *testing.T) {
	reg, s := serve(t, Config{PullProgressTimeout: 2500 * time.Millisecond}, build(t, v1.Config{}, layer(t, file{name: "f", body: strings.Repeat("x", 50_000)})))
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			// A slow registry, over TCP. Each answer comes within the timeout, all answers together
			// do not.
			time.Sleep(900 * time.Millisecond)
		}
		return false
	})
	pullImage(t, s, app)
}
