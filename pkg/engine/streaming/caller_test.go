package streaming

import (
	"net/netip"
	"testing"
)

func TestWhoIsServed(t *testing.T) {
	const at, rebound = "127.0.0.1", "node.example:40000"
	for name, tc := range map[string]struct {
		at, host, origin string
		forwarded        bool
		served           bool
	}{
		"a client of the URL":           {at: at, host: "127.0.0.1:40000", served: true},
		"a tunnel to the URL":           {at: at, host: "localhost:8080", served: true},
		"the address alone":             {at: at, host: "127.0.0.1", served: true},
		"IPv6":                          {at: "::1", host: "[::1]:40000", served: true},
		"IPv6 alone":                    {at: "::1", host: "[::1]", served: true},
		"IPv4 in IPv6":                  {at: at, host: "[::ffff:127.0.0.1]:40000", served: true},
		"the node's address":            {at: "192.0.2.7", host: "192.0.2.7:40000", served: true},
		"a zone":                        {at: "fe80::1%eth0", host: "[fe80::1]:40000", served: true},
		"its own origin":                {at: at, host: "127.0.0.1:40000", origin: "http://127.0.0.1:40000", served: true},
		"a kubelet's proxy":             {at: at, host: "api.cluster.example:6443", forwarded: true, served: true},
		"a browser behind a kubelet":    {at: at, host: "api.cluster.example", origin: "https://console.example", forwarded: true, served: true},
		"a name that resolves to here":  {at: at, host: rebound},
		"its own origin, rebound":       {at: at, host: rebound, origin: "http://" + rebound},
		"no host":                       {at: at},
		"another address":               {at: at, host: "192.0.2.7:40000"},
		"localhost, not the address":    {at: "192.0.2.7", host: "localhost:40000"},
		"a name like localhost":         {at: at, host: "localhost.evil.example:40000"},
		"a page from elsewhere":         {at: at, host: "127.0.0.1:40000", origin: "https://evil.example"},
		"a client that names localhost": {at: at, host: "127.0.0.1:40000", origin: "http://localhost", served: true},
		"localhost, from elsewhere":     {at: "192.0.2.7", host: "192.0.2.7:40000", origin: "http://localhost"},
		"its own origin, by a name":     {at: at, host: "127.0.0.1:40000", origin: "http://" + rebound},
		"a page over TLS":               {at: at, host: "127.0.0.1:40000", origin: "https://127.0.0.1:40000"},
		"a page from a file":            {at: at, host: "127.0.0.1:40000", origin: "null"},
		"an invalid origin":             {at: at, host: "127.0.0.1:40000", origin: "http://%zz"},
		"no address to compare with":    {host: "127.0.0.1:40000"},
	} {
		c := caller{host: tc.host, origin: tc.origin, forwarded: tc.forwarded}
		if tc.at != "" {
			c.at = netip.MustParseAddr(tc.at)
		}
		if why := c.refusal(); (why == "") != tc.served {
			t.Errorf("%s: %q", name, why)
		}
	}
}
