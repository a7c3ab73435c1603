package main

import (
	"errors"
	"os"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// connect forwards one connection to a port of the pod's loopback, over IPv4, or over IPv6 if IPv4
// fails. The other end is a socket on standard input and output. connect first writes one byte to
// the socket: 0, or the errno of the failed connect. Each direction ends separately. The program
// exits when both have ended, or when the reader of its standard error closes that.
func connect(port string) {
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		answer(unix.EINVAL)
	}
	fd, err := dial(int(number))
	answer(err)
	go func() {
		// Standard error reveals a close: on a socket it looks the same as a half-close.
		await(unix.Stderr, unix.POLLERR)
		os.Exit(1)
	}()
	var ways sync.WaitGroup
	ways.Go(func() {
		carry(fd, unix.Stdin)
		_ = unix.Shutdown(fd, unix.SHUT_WR)
	})
	ways.Go(func() {
		carry(unix.Stdout, fd)
		_ = unix.Shutdown(unix.Stdout, unix.SHUT_WR)
	})
	ways.Wait()
}

// answer writes the result of the connect, and exits if it failed.
func answer(failed error) {
	var errno unix.Errno
	if failed != nil && !errors.As(failed, &errno) {
		errno = unix.EIO
	}
	n, err := unix.Write(unix.Stdout, []byte{byte(errno)})
	if errno != 0 || n != 1 || err != nil {
		os.Exit(1)
	}
}

func dial(port int) (int, error) {
	fd, err := dialTo(unix.AF_INET, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
	if err != nil {
		if v6, other := dialTo(unix.AF_INET6, &unix.SockaddrInet6{Port: port, Addr: [16]byte{15: 1}}); other == nil {
			return v6, nil
		}
	}
	return fd, err
}

func dialTo(family int, to unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Connect(fd, to)
	if err == unix.EINTR {
		// The connect continues in the background.
		await(fd, unix.POLLOUT)
		var code int
		if code, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR); err == nil && code != 0 {
			err = unix.Errno(code)
		}
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func await(fd int, events int16) {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, -1)
		if err != unix.EINTR {
			return
		}
	}
}

// carry copies until the source ends or the destination fails.
func carry(to, from int) {
	b := make([]byte, 64<<10)
	for {
		n, err := unix.Read(from, b)
		if shouldRetry(err, from, unix.POLLIN) {
			continue
		}
		if err != nil || n == 0 || !writeAll(to, b[:n]) {
			return
		}
	}
}

func writeAll(to int, b []byte) bool {
	for len(b) > 0 {
		n, err := unix.Write(to, b)
		if err != nil && !shouldRetry(err, to, unix.POLLOUT) {
			return false
		}
		b = b[max(0, n):]
	}
	return true
}

// shouldRetry reports whether to repeat a call, after waiting for readiness: gVisor's descriptors
// from its host never block.
func shouldRetry(err error, fd int, events int16) bool {
	if errors.Is(err, unix.EAGAIN) {
		await(fd, events)
		return true
	}
	return errors.Is(err, unix.EINTR)
}
