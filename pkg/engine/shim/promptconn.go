package shim

import (
	"fmt"
	"net"
	"time"
)

// promptConn is a connection to a process that must read what it is sent. ttrpc
// writes one call after the other and heeds no context meanwhile: one that nobody
// reads would hold up all that follow, for ever.
type promptConn struct {
	net.Conn
	patience time.Duration
}

// Write ends the connection when it fails: what follows half a message makes no
// sense to the other side.
func (c promptConn) Write(b []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.patience)); err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(b)
	if err != nil {
		_ = c.Close()
		return n, fmt.Errorf("%w: %w", net.ErrClosed, err) // which makes it Lost
	}
	return n, nil
}
