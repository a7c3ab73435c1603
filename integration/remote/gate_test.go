package remote

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// gate stands before a registry, and lets in who has a password once it is
// closed: with the password itself, or with a token that was given for it.
type gate struct {
	tokens bool

	mu        sync.Mutex
	closed    bool
	passwords map[string]string // by user
	seen      []string          // the users who showed a password, right or not
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = false
}

// let lets a user in with a password, and with no other.
func (g *gate) let(user, password string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.passwords == nil {
		g.passwords = map[string]string{}
	}
	g.passwords[user] = password
}

// came returns who has shown a password since it was asked last.
func (g *gate) came() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	seen := slices.Compact(slices.Sorted(slices.Values(g.seen)))
	g.seen = nil
	return seen
}

// admits says whether a request shows a right password.
func (g *gate) admits(r *http.Request) bool {
	user, password, some := r.BasicAuth()
	if !some {
		user, password = r.PostFormValue("username"), r.PostFormValue("password")
	}
	if user == "" {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = append(g.seen, user)
	return g.passwords[user] != "" && g.passwords[user] == password
}

const tokenPath = "/token"

func (g *gate) wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		closed := g.closed
		g.mu.Unlock()
		switch {
		case g.tokens && r.URL.Path == tokenPath:
			g.giveToken(w, r)
		case !closed, g.tokens && g.hasToken(r), !g.tokens && g.admits(r):
			next.ServeHTTP(w, r)
		default:
			challenge := `Basic realm="gate"`
			if g.tokens {
				challenge = `Bearer realm="http://` + r.Host + tokenPath + `",service="gate",scope="repository:all:pull"`
			}
			w.Header().Set("WWW-Authenticate", challenge)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		}
	})
}

// giveToken gives one that is good for as long as the password is, to who asks in
// either of the two ways. Nobody's is good for nothing, as registries give it to
// who says no name.
func (g *gate) giveToken(w http.ResponseWriter, r *http.Request) {
	user, password, some := r.BasicAuth()
	if r.Method == http.MethodPost {
		user, password, some = r.PostFormValue("username"), r.PostFormValue("password"), true
	}
	if some && !g.admits(r) {
		http.Error(w, `{"errors":[{"code":"UNAUTHORIZED"}]}`, http.StatusUnauthorized)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	token := user + "/" + password
	_ = json.NewEncoder(w).Encode(map[string]any{"token": token, "access_token": token, "expires_in": 300}) // who asked may be gone
}

func (g *gate) hasToken(r *http.Request) bool {
	user, password, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), "/")
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.passwords[user] != "" && g.passwords[user] == password
}
