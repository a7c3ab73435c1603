package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/log"
	"github.com/coreos/go-systemd/v22/daemon"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const alive = daemon.SdNotifyWatchdog

// nobody is an id that no object has: the question goes all the way, and the
// answer is short.
const nobody = "0000000000000000000000000000000000000000000000000000000000000000"

// attempts is how often a daemon that has not answered yet is asked, before it is
// called stuck.
const attempts = 4

// feedWatchdog tells the service manager that the daemon is alive, twice per
// interval, for as long as the daemon answers what a client would ask it. A
// daemon that does not is ended by the service manager, with the stacks of its
// goroutines in the journal, and started again; pods go on meanwhile.
func (d *Daemon) feedWatchdog(ctx context.Context) error {
	interval := d.options.Watchdog
	if interval <= 0 {
		return nil
	}
	check := func(ctx context.Context) error { return selfCheck(ctx, d.options.Config.Server.Socket) }
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	d.teardown.add("watchdog", func(context.Context) error {
		cancel()
		<-ended
		return nil
	})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(interval / 2); ; {
			d.feed(ctx, check, interval/2)
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
			}
		}
	}()
	return nil
}

func (d *Daemon) feed(ctx context.Context, check func(context.Context) error, patience time.Duration) {
	switch err := answered(ctx, check, patience); {
	case err == nil:
		d.notify.send(ctx, alive)
	case ctx.Err() == nil:
		log.G(ctx).WithError(err).Error("Self-check failed; withholding watchdog keep-alive")
	}
}

// answered asks until one check succeeds, and for no longer than patience. While
// one is waited for the next begins beside it: one answer that is slow, and one
// connection that is stuck, do not speak for the daemon.
func answered(ctx context.Context, check func(context.Context) error, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	var asked sync.WaitGroup
	defer asked.Wait()
	defer cancel()
	answers := make(chan error, attempts)
	turn := time.NewTicker(patience / attempts)
	defer turn.Stop()
	begun, open := 0, 0
	begin := func() {
		if begun < attempts {
			begun++
			open++
			asked.Go(func() { answers <- check(ctx) })
		}
	}
	for begin(); ; {
		select {
		case <-turn.C:
			begin()
		case err := <-answers: // the end of ctx ends all checks
			if open--; err == nil || open == 0 && (begun == attempts || ctx.Err() != nil) {
				return err
			}
		}
	}
}

// selfCheck asks the daemon as a client does that has just come.
func selfCheck(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return errors.Join(ask(ctx, conn), conn.Close())
}

// ask goes through the socket, the router, the records of pods and the images'
// database. What may wait for something outside, such as a network plugin, is
// not asked: that is no fault of the daemon's.
func ask(ctx context.Context, conn *grpc.ClientConn) error {
	runtime, images := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	_, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: nobody}})
	if silent(err) {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	_, err = runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: nobody}})
	if silent(err) {
		return fmt.Errorf("list containers: %w", err)
	}
	_, err = images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: nobody}})
	if silent(err) {
		return fmt.Errorf("look up an image: %w", err)
	}
	return nil
}

// silent says whether a call got no answer. A refusal is one: a new process would
// refuse it as well.
func silent(err error) bool {
	switch status.Code(err) {
	case codes.DeadlineExceeded, codes.Canceled, codes.Unavailable:
		return true
	default:
		return false
	}
}

const (
	ready    = daemon.SdNotifyReady
	stopping = daemon.SdNotifyStopping
	// reloading needs MONOTONIC_USEC beside it.
	reloading = daemon.SdNotifyReloading
)

// notifier tells systemd about the daemon's state (sd_notify(3)). It has the
// socket's path by value, and not by environment as go-systemd's, because the
// variable must be gone before any child starts: OCI runtimes that see it take
// the socket for the container's.
type notifier struct {
	socket string
}

// send does its best: a manager that does not listen is no reason to end.
func (n notifier) send(ctx context.Context, state string) {
	if n.socket == "" {
		return
	}
	if err := n.write(state); err != nil {
		log.G(ctx).WithError(err).Warn("Failed to notify the service manager")
	}
}

func (n notifier) write(state string) error {
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = conn.Write([]byte(state))
	return errors.Join(err, conn.Close())
}
