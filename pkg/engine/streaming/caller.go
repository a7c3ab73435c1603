package streaming

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/containerd/log"
)

// caller is the part of a request that identifies the caller.
type caller struct {
	// host is the request's Host, with or without a port.
	host string
	// origin is the web page that a browser acts for; empty without a browser.
	origin string
	// forwarded is set if a proxy passed the request on, as kubelets do.
	forwarded bool
	at        netip.Addr
}

func callerOf(r *http.Request) caller {
	c := caller{host: r.Host, origin: r.Header.Get("Origin"), forwarded: r.Header.Get("X-Forwarded-For") != ""}
	if local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr); ok {
		c.at = local.AddrPort().Addr().Unmap()
	}
	return c
}

// refusal returns why a caller is rejected, or "". A web page must not reach sessions through a
// browser on the node, not even by its own DNS name for the node's address. Requests that a kubelet
// passes on have the Host and Origin that its client sent to the API server. They are recognized by
// X-Forwarded-For, which a page cannot send with a request that upgrades its connection. Pure.
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

// isHere reports whether a host, with or without a port, is the address of this end of the
// connection.
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

// ownOrigin reports whether the origin is this host. Clients other than browsers send this origin,
// if they must send one.
func (c caller) ownOrigin() bool {
	u, err := url.Parse(c.origin)
	return err == nil && u.Scheme == "http" && c.isHere(u.Host)
}

// guard rejects callers before their request uses up a URL.
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
