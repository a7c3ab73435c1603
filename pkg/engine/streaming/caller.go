package streaming

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/containerd/log"
)

// caller is what a request tells of who makes it.
type caller struct {
	// host is the request's, with or without a port.
	host string
	// origin is the web page that a browser makes it for; empty without a browser.
	origin string
	// forwarded says that a proxy passes it on, as kubelets do.
	forwarded bool
	// at is the address of this end of the connection.
	at netip.Addr
}

func callerOf(r *http.Request) caller {
	c := caller{host: r.Host, origin: r.Header.Get("Origin"), forwarded: r.Header.Get("X-Forwarded-For") != ""}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		c.at = local.AddrPort().Addr().Unmap()
	}
	return c
}

// refusal says why a caller is not served; empty if it is. A web page must not reach
// sessions through the browser of somebody on the node, be it under a name of its
// own that leads here. What a kubelet passes on has the Host, and the Origin, that
// its client has sent to the API server; it is known by X-Forwarded-For, which a
// page cannot send with a request that upgrades its connection. Pure.
func (c caller) refusal() string {
	switch {
	case c.forwarded:
		return ""
	case !c.isHere(c.host):
		return "the Host of the request is not the address of this server; use the URL that berth returned"
	case c.origin != "" && !c.ownOrigin():
		return "requests from web pages of other hosts are rejected"
	}
	return ""
}

// isHere says whether a host, with or without a port, is this end of the connection,
// by its address.
func (c caller) isHere(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return c.at.IsLoopback()
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().WithZone("") == c.at.WithZone("")
}

// ownOrigin says whether the origin is this host. Clients that are no browsers and
// have to name one name that.
func (c caller) ownOrigin() bool {
	u, err := url.Parse(c.origin)
	return err == nil && u.Scheme == "http" && c.isHere(u.Host)
}

// guard refuses callers before a URL is used up.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callerOf(r)
		if why := c.refusal(); why != "" {
			log.G(r.Context()).WithFields(log.Fields{"host": c.host, "origin": c.origin, "reason": why}).Debug("Rejected request for exec, attach or port-forward")
			http.Error(w, why, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
