package image

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	clientLabel = "berth.dev/client"
	// maxClientLease is how long a lease of a client holds what nothing else needs, and
	// maxClientLeases how many there may be.
	maxClientLease  = 24 * time.Hour
	maxClientLeases = 1024
	// maxLeaseResources is how much one may hold.
	maxLeaseResources = 10_000
	// clientLeaseGrace is how old one must be to give way when the disk is nearly full.
	// When it is full, below clientLeaseMargin percent, all do.
	clientLeaseGrace  = time.Hour
	clientLeaseMargin = 10

	expireLabel = "containerd.io/gc.expire"
)

func isClientLease(l leases.Lease) bool {
	_, ok := l.Labels[clientLabel]
	return ok
}

// isOver says whether the collector takes what a lease holds.
func isOver(l leases.Lease, now time.Time) bool {
	end, err := time.Parse(time.RFC3339, l.Labels[expireLabel])
	return err == nil && now.After(end)
}

// clientLeases are the leases of clients. Those of pulls are not shown.
type clientLeases struct {
	leases  leases.Manager
	collect func(ctx context.Context) error
	// soon asks for a collection.
	soon func()
}

// Create implements leases.Manager. Every lease ends after maxClientLease: clients die,
// and what they held would fill the disk.
func (c *clientLeases) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	var l leases.Lease
	for _, opt := range opts {
		if err := opt(&l); err != nil {
			return leases.Lease{}, err
		}
	}
	if err := checkLabelSizes(l.Labels); err != nil {
		return leases.Lease{}, err
	}
	labels, err := clientLeaseLabels(l.Labels, time.Now())
	if err != nil {
		return leases.Lease{}, err
	}
	all, err := c.List(ctx)
	if err != nil {
		return leases.Lease{}, err
	}
	if len(all) >= maxClientLeases {
		return leases.Lease{}, fmt.Errorf("there are %d leases; delete some: %w", len(all), errdefs.ErrResourceExhausted)
	}
	return c.leases.Create(ctx, leases.WithID(l.ID), leases.WithLabels(labels))
}

// clientLeaseLabels are those of a new lease. Pure.
func clientLeaseLabels(asked map[string]string, now time.Time) (map[string]string, error) {
	labels := map[string]string{}
	maps.Copy(labels, asked)
	latest := now.Add(maxClientLease)
	end := latest
	if text, ok := labels[expireLabel]; ok {
		asked, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("label %s: %w: %w", expireLabel, err, errdefs.ErrInvalidArgument)
		}
		if asked.Before(latest) {
			end = asked
		}
	}
	labels[expireLabel] = end.UTC().Format(time.RFC3339)
	labels[clientLabel] = "true"
	delete(labels, pullLabel)
	delete(labels, bootLabel)
	return labels, nil
}

func (c *clientLeases) Delete(ctx context.Context, l leases.Lease, opts ...leases.DeleteOpt) error {
	if err := c.check(ctx, l); err != nil {
		return err
	}
	var o leases.DeleteOptions
	for _, opt := range opts {
		if err := opt(ctx, &o); err != nil {
			return err
		}
	}
	if err := c.leases.Delete(ctx, l); err != nil {
		return err
	}
	if !o.Synchronous {
		c.soon()
		return nil
	}
	return c.collect(ctx)
}

// List implements leases.Manager. Those whose time is up are none.
func (c *clientLeases) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	all, err := c.leases.List(ctx, filters...)
	var own []leases.Lease
	for _, l := range all {
		if isClientLease(l) && !isOver(l, time.Now()) {
			own = append(own, l)
		}
	}
	return own, err
}

func (c *clientLeases) AddResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	held, err := c.ListResources(ctx, l)
	if err != nil {
		return err
	}
	if len(held) >= maxLeaseResources {
		return fmt.Errorf("lease %.100q holds %d resources; use another: %w", l.ID, len(held), errdefs.ErrResourceExhausted)
	}
	return c.leases.AddResource(ctx, l, r)
}

func (c *clientLeases) DeleteResource(ctx context.Context, l leases.Lease, r leases.Resource) error {
	if err := c.check(ctx, l); err != nil {
		return err
	}
	return c.leases.DeleteResource(ctx, l, r)
}

func (c *clientLeases) ListResources(ctx context.Context, l leases.Lease) ([]leases.Resource, error) {
	if err := c.check(ctx, l); err != nil {
		return nil, err
	}
	return c.leases.ListResources(ctx, l)
}

func (c *clientLeases) check(ctx context.Context, l leases.Lease) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(own leases.Lease) bool { return own.ID == l.ID }) {
		return nil
	}
	return fmt.Errorf("lease %.100q: %w", l.ID, errdefs.ErrNotFound)
}

// endClients ends what clients hold and whose time is up, until ctx ends.
func (s *Store) endClients(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, 10*time.Minute, false, func(ctx context.Context) (bool, error) {
		all, err := s.files.leases.List(ctx)
		if err != nil {
			log.G(ctx).WithError(err).Warn("Failed to list leases")
		}
		if slices.ContainsFunc(all, func(l leases.Lease) bool { return isClientLease(l) && isOver(l, time.Now()) }) {
			s.work.collector.kick()
		}
		return false, nil
	})
}

// dropClientWrites gives up what clients began to write.
func (s *Store) dropClientWrites(ctx context.Context) {
	all, err := s.files.content.ListStatuses(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list what is being written")
		return
	}
	for _, st := range all {
		if !strings.HasPrefix(st.Ref, clientRefs) {
			continue
		}
		if err := s.files.content.Abort(ctx, st.Ref); err != nil && !errdefs.IsNotFound(err) {
			log.G(ctx).WithError(err).WithField("ref", st.Ref).Warn("Failed to give up what a client began to write")
		}
	}
}

// dropClientLeases gives up what clients hold since before that time.
func (s *Store) dropClientLeases(ctx context.Context, before time.Time) {
	all, err := s.files.leases.List(ctx)
	if err != nil {
		log.G(ctx).WithError(err).Warn("Failed to list leases")
		return
	}
	dropped := 0
	for _, l := range all {
		if isClientLease(l) && l.CreatedAt.Before(before) {
			s.files.endLease(ctx, l)
			dropped++
		}
	}
	if dropped > 0 {
		log.G(ctx).WithField("leases", dropped).Warn("Gave up leases of clients because the disk is nearly full")
		s.work.collector.kick()
	}
}
