package image

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/internal/test"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

func encodeBase64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

const header = "header-for-the-registry"

// eavesdropper is a server that records every request.
type eavesdropper struct {
	*httptest.Server
	mu    sync.Mutex
	heard strings.Builder
}

// newEavesdropper listens on another port of the registry's host.
func newEavesdropper(t *testing.T, secure bool, answer func(*eavesdropper, http.ResponseWriter, *http.Request)) (e *eavesdropper, ca string) {
	t.Helper()
	return eavesdropperAt(t, "127.0.0.1", secure, answer)
}

// newStranger listens on another host.
func newStranger(t *testing.T, secure bool, answer func(*eavesdropper, http.ResponseWriter, *http.Request)) (e *eavesdropper, ca string) {
	t.Helper()
	return eavesdropperAt(t, "127.0.0.2", secure, answer)
}

func eavesdropperAt(t *testing.T, address string, secure bool, answer func(*eavesdropper, http.ResponseWriter, *http.Request)) (e *eavesdropper, ca string) {
	t.Helper()
	e = &eavesdropper{}
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		_ = r.ParseForm()
		fmt.Fprintf(&e.heard, "%s %s %v %v\n", r.Method, r.URL, r.Header, r.PostForm)
		if user, password, ok := r.BasicAuth(); ok {
			fmt.Fprintf(&e.heard, "%s:%s\n", user, password)
		}
		e.mu.Unlock()
		answer(e, w, r)
	}))
	listener := test.Value(net.Listen("tcp", net.JoinHostPort(address, "0")))(t)
	test.Must(t, e.Listener.Close())
	e.Listener = listener
	if secure {
		ca = serveTLS(t, e.Server)
	} else {
		e.Start()
	}
	t.Cleanup(e.Close)
	return e, ca
}

func (e *eavesdropper) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.heard.String()
}

// wants returns a function that answers requests for /token with a token, and all others with the
// challenge.
func wants(challenge func(e *eavesdropper) string) func(*eavesdropper, http.ResponseWriter, *http.Request) {
	return func(e *eavesdropper, w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/token") {
			_, _ = fmt.Fprint(w, `{"token":"of-the-eavesdropper","access_token":"of-the-eavesdropper"}`)
			return
		}
		w.Header().Set("WWW-Authenticate", challenge(e))
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func basicChallenge(*eavesdropper) string { return `Basic realm="here"` }

func bearerChallenge(e *eavesdropper) string {
	return fmt.Sprintf(`Bearer realm="%s/token",service="s",scope="repository:app:pull"`, e.URL)
}

// A server on another host, to which a registry or its token server redirects, gets no credentials.
// Neither does a token server without TLS that a registry with TLS names.
func TestCredentialsStayWithTheRegistry(t *testing.T) {
	given := map[string]*runtimeapi.AuthConfig{
		"password": {Username: user, Password: password},
		"token":    {IdentityToken: idToken},
	}
	for kind, auth := range given {
		for name, c := range map[string]struct {
			secure bool
			answer func(*eavesdropper, http.ResponseWriter, *http.Request)
			// lead returns a guard with which the registry sends clients to the eavesdropper.
			lead func(reg *testRegistry, e *eavesdropper) func(http.ResponseWriter, *http.Request) bool
		}{
			"blob to a server with basic auth":   {true, wants(basicChallenge), redirectBlobs},
			"blob to a server with bearer auth":  {true, wants(bearerChallenge), redirectBlobs},
			"blob to a server without TLS":       {false, wants(bearerChallenge), redirectBlobs},
			"manifest to another server":         {true, wants(bearerChallenge), redirectAll},
			"token server without TLS":           {false, wants(bearerChallenge), challengeOf},
			"token server redirects to TLS":      {true, wants(bearerChallenge), redirectTokens},
			"token server redirects without TLS": {false, wants(bearerChallenge), redirectTokens},
			"blob to a server without the blob":  {false, func(_ *eavesdropper, w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) }, redirectBlobs},
		} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				reg := newTestRegistry(t)
				reg.push(t, "app:1", small(t))
				e, ca := newStranger(t, c.secure, c.answer)
				reg.setGuard(c.lead(reg, e))
				s := withHeader(t, reg.URL, reg.ca, ca)
				test.Fails(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app, Auth: auth})), "the pull succeeded")
				heard := e.text()
				wantUnheard(t, heard)
				if heard == "" && !strings.HasPrefix(name, "token server") {
					t.Error("the eavesdropper got no request")
				}
			})
		}
	}
}

// TestPlainRegistryNamesAStranger pulls from a registry without TLS that names a token server
// without TLS. Only a token server on the registry's own host gets the credentials.
func TestPlainRegistryNamesAStranger(t *testing.T) {
	for name, own := range map[string]bool{"stranger": false, "its own host": true} {
		listen := newStranger
		if own {
			listen = newEavesdropper
		}
		tokens, _ := listen(t, false, wants(bearerChallenge))
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("WWW-Authenticate", bearerChallenge(tokens))
			w.WriteHeader(http.StatusUnauthorized)
		}))
		t.Cleanup(plain.Close)
		s := openStore(t, Config{HostsDir: writeHosts(t, domain, fmt.Sprintf("server = %q\n", plain.URL))})
		_, err := s.Pull(t.Context(), pull.Request{Ref: app, Auth: &runtimeapi.AuthConfig{Username: user, Password: password}})
		test.Fails(t, err, "%s: the pull succeeded", name)
		if heard := strings.Contains(tokens.text(), password) || strings.Contains(tokens.text(), basic(user, password)); heard != own {
			t.Errorf("%s: the token server got the password: %v, want %v; the pull: %v", name, heard, own, err)
		}
	}
}

func redirectBlobs(reg *testRegistry, e *eavesdropper) func(http.ResponseWriter, *http.Request) bool {
	allow := bearerAuth(reg, user, password, idToken)
	return func(w http.ResponseWriter, r *http.Request) bool {
		if allow(w, r) {
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, e.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		return false
	}
}

func redirectAll(_ *testRegistry, e *eavesdropper) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		http.Redirect(w, r, e.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
}

// challengeOf makes the eavesdropper the registry's token server.
func challengeOf(_ *testRegistry, e *eavesdropper) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		wants(bearerChallenge)(e, w, r)
		return true
	}
}

// withHeader opens a store whose hosts.toml has a secret header for the registry.
func withHeader(t *testing.T, server string, cas ...string) *Store {
	t.Helper()
	cas = slices.DeleteFunc(cas, func(ca string) bool { return ca == "" })
	list := test.Value(json.Marshal(cas))(t)
	return openStore(t, Config{HostsDir: writeHosts(t, domain, fmt.Sprintf("server = %q\nca = %s\n[header]\nX-Secret = %q\n", server, list, header))})
}

// wantUnheard checks that a server got no credentials.
func wantUnheard(t *testing.T, heard string) {
	t.Helper()
	for _, secret := range []string{password, idToken, basic(user, password), header} {
		if strings.Contains(heard, secret) {
			t.Errorf("the server got %q:\n%s", secret, heard)
		}
	}
}

// redirectTokens makes the registry's own token server redirect to the eavesdropper.
func redirectTokens(reg *testRegistry, e *eavesdropper) func(http.ResponseWriter, *http.Request) bool {
	allow := bearerAuth(reg, "nobody", "at all", "none")
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/token" {
			http.Redirect(w, r, e.URL+"/token", http.StatusTemporaryRedirect)
			return true
		}
		return allow(w, r)
	}
}

// onName replaces the loopback address of a server by the name localhost.
func onName(address string) string { return strings.Replace(address, "127.0.0.1", "localhost", 1) }

func onAddress(address string) string { return address }

// A registry that redirects to another scheme or port of the same name or address gets the
// credentials there, too, but never without TLS.
func TestCredentialsFollowTheName(t *testing.T) {
	for name, c := range map[string]struct {
		front, back bool // TLS before and after the redirect
		works       bool
		// called returns the server's URL with its name or with its address.
		called func(string) string
	}{
		"to TLS":                     {false, true, true, onName},
		"to another port":            {true, true, true, onName},
		"from TLS to no TLS":         {true, false, false, onName},
		"no TLS at all":              {false, false, false, onName},
		"address to TLS":             {false, true, true, onAddress},
		"address to another port":    {true, true, true, onAddress},
		"address from TLS to no TLS": {true, false, false, onAddress},
		"address without any TLS":    {false, false, false, onAddress},
	} {
		for kind, auth := range map[string]*runtimeapi.AuthConfig{
			"password": {Username: user, Password: password},
			"basic":    {Username: user, Password: password},
			"token":    {IdentityToken: idToken},
			"server":   {Username: user, Password: password, ServerAddress: "of the front"},
		} {
			t.Run(name+"/"+kind, func(t *testing.T) {
				reg := newTestRegistry(t)
				reg.push(t, "app:1", small(t))
				guard := bearerAuth(reg, user, password, idToken)
				if kind == "basic" {
					guard = basicAuth(user, password)
				}
				reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
					if r.URL.Path != "/token" && r.Header.Get("X-Secret") != header {
						http.Error(w, "the header is missing", http.StatusForbidden)
						return true
					}
					return guard(w, r)
				})
				clear, _ := newEavesdropper(t, false, wants(basicChallenge))
				target := reg.URL
				if !c.back {
					target = clear.URL
				}
				front, ca := newEavesdropper(t, c.front, func(_ *eavesdropper, w http.ResponseWriter, r *http.Request) {
					http.Redirect(w, r, c.called(target)+r.URL.Path, http.StatusTemporaryRedirect)
				})
				if auth.ServerAddress != "" {
					auth = &runtimeapi.AuthConfig{Username: user, Password: password, ServerAddress: c.called(front.URL)}
				}
				s := withHeader(t, c.called(front.URL), reg.ca, ca)
				_, err := s.Pull(t.Context(), pull.Request{Ref: app, Auth: auth})
				if (err == nil) != c.works {
					t.Errorf("the pull returned %v; want success: %v", err, c.works)
				}
				heard := clear.text()
				wantUnheard(t, heard)
				if !c.back && heard == "" {
					t.Error("the server without TLS got no request: nothing was redirected")
				}
			})
		}
	}
}

// A token server may be on another host, as Docker Hub's is. A blob may be on a third host, which
// requests another token.
func TestHonestRedirects(t *testing.T) {
	reg := newTestRegistry(t)
	reg.push(t, "app:1", small(t))
	tokens, ca := newStranger(t, true, func(_ *eavesdropper, w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("password") == password {
			_, _ = fmt.Fprint(w, `{"access_token":"for-the-registry"}`)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	})
	store, storeCA := newStranger(t, true, func(e *eavesdropper, w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/token" || r.Header.Get("Authorization") != "Bearer of-the-eavesdropper" {
			wants(bearerChallenge)(e, w, r)
			return
		}
		reg.serveBlob(w, r)
	})
	reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") != "Bearer for-the-registry" {
			wants(bearerChallenge)(tokens, w, r)
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, store.URL+r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	hosts := writeHosts(t, domain, fmt.Sprintf("server = %q\nca = [%q, %q, %q]\n", reg.URL, reg.ca, ca, storeCA))
	s := openStore(t, Config{HostsDir: hosts})
	test.Checkf(t, test.Err(s.Pull(t.Context(), pull.Request{Ref: app, Auth: &runtimeapi.AuthConfig{Username: user, Password: password}})), "pull")
	if heard := store.text(); strings.Contains(heard, password) || strings.Contains(heard, "for-the-registry") {
		t.Errorf("the blobs' host got the registry's credentials:\n%s", heard)
	}
}
