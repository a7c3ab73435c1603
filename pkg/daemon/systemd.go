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

// absentID is the id of no object: a query for it runs through all layers, and its answer is short.
const absentID = "0000000000000000000000000000000000000000000000000000000000000000"

// attempts is the number of self-checks without an answer after which a keep-alive is withheld.
const attempts = 4

// feedWatchdog notifies the service manager twice per interval, while the daemon answers the calls
// of a self-check. Otherwise the service manager kills the daemon, with the stacks of its
// goroutines in the journal, and restarts it; pods keep running.
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

// answered repeats the check until one succeeds, for at most patience. The next check starts while
// the previous one still waits: a single slow answer or stuck connection does not prove a stuck
// daemon.
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

// selfCheck calls the daemon as a new client does.
func selfCheck(ctx context.Context, socket string) error {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return fmt.Errorf("watchdog: %w", err)
	}
	return errors.Join(ask(ctx, conn), conn.Close())
}

// ask covers the socket, the router, the records of pods and the images' database. It avoids calls
// that may wait for other programs, such as a network plugin: their failures are not the daemon's.
func ask(ctx context.Context, conn *grpc.ClientConn) error {
	runtime, images := runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
	_, err := runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: absentID}})
	if unanswered(err) {
		return fmt.Errorf("list pod sandboxes: %w", err)
	}
	_, err = runtime.ListContainers(ctx, &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{Id: absentID}})
	if unanswered(err) {
		return fmt.Errorf("list containers: %w", err)
	}
	_, err = images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: &runtimeapi.ImageSpec{Image: absentID}})
	if unanswered(err) {
		return fmt.Errorf("look up an image: %w", err)
	}
	return nil
}

// unanswered reports whether a call got no answer. A rejection is an answer: a new process would
// also reject the call.
func unanswered(err error) bool {
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
	// reloading must be sent with MONOTONIC_USEC.
	reloading = daemon.SdNotifyReloading
)

// notifier reports the daemon's state to systemd (sd_notify(3)). It gets the socket's path by
// value, unlike go-systemd, because NOTIFY_SOCKET must be removed from the environment before any
// child starts: an OCI runtime would use it for the container.
type notifier struct {
	socket string
}

// send only logs an error: the daemon also works without a service manager.
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
