// Package streaming serves exec, attach and port-forward over HTTP: it hands out
// the URLs that the CRI's calls answer with, and runs the sessions that clients
// open there, by k8s.io/cri-streaming.
//
// The access control is the URL itself: an unguessable token that works once,
// within a minute. The listener is meant for the loopback interface.
//
// A session's context ends when its client's connection does. cri-streaming
// does not see that by itself, because it has taken the connection over from the
// HTTP server; here the connection watches its own reads and writes.
package streaming

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/containerd/log"
	"k8s.io/cri-streaming/pkg/streaming"
)

// Runtime runs sessions.
type Runtime = streaming.Runtime

// Config says where to serve.
type Config struct {
	// Address is an IP address; Port 0 takes a free one.
	Address string
	Port    int
	// IdleTimeout ends a session on which nothing moves; 0 is four hours.
	IdleTimeout time.Duration
}

// Server hands out URLs (GetExec, GetAttach, GetPortForward, of which each may
// be called at any time) and serves them.
type Server struct {
	streaming.Server
	http *http.Server
}

// Serve listens and returns; sessions run until Close.
func Serve(c Config, rt Runtime) (*Server, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(c.Address, strconv.Itoa(c.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for exec, attach and port-forward: %w", err)
	}
	config := streaming.DefaultConfig
	config.Addr = l.Addr().String()
	config.BaseURL = &url.URL{Scheme: "http", Host: l.Addr().String()}
	if c.IdleTimeout > 0 {
		config.StreamIdleTimeout = c.IdleTimeout
	}
	inner, err := streaming.NewServer(config, rt)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	s := &Server{Server: inner, http: &http.Server{
		Handler:           inner,
		ReadHeaderTimeout: 30 * time.Second,
		ConnContext:       func(_ context.Context, c net.Conn) context.Context { return c.(*watched).ctx },
	}}
	go s.serve(&listener{l})
	return s, nil
}

func (s *Server) serve(l net.Listener) {
	if err := s.http.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		log.L.WithError(err).Error("exec, attach and port-forward are not served any more")
	}
}

// Close ends the listener and the connections that have no session yet. Running
// sessions end with their connections.
func (s *Server) Close() error { return s.http.Close() }

// listener makes every connection watch itself.
type listener struct{ net.Listener }

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &watched{Conn: c, ctx: ctx, cancel: cancel}, nil
}

// watched is a connection whose context ends when it breaks.
type watched struct {
	net.Conn
	ctx    context.Context
	cancel context.CancelFunc
}

func (c *watched) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.note(err)
	return n, err
}

func (c *watched) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.note(err)
	return n, err
}

func (c *watched) Close() error {
	c.cancel()
	return c.Conn.Close()
}

// note ends the context for good errors: a deadline is how the HTTP server lets
// go of a connection that is being taken over.
func (c *watched) note(err error) {
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.cancel()
	}
}
