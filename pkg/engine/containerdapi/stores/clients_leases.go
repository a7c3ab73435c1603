package stores

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/errdefs"

	"github.com/berth-cri/berth/pkg/engine/image/disk"
	"github.com/berth-cri/berth/pkg/engine/image/pull"
)

const (
	// maxClientLease is the longest life of a client's lease, and maxClientLeases the limit of
	// leases.
	maxClientLease  = 24 * time.Hour
	maxClientLeases = 1024
	// maxLeaseResources limits the resources of one lease.
	maxLeaseResources = 10_000
)

// clientLeases are the leases of clients, without those of pulls.
type clientLeases struct {
	leases leases.Manager
	of     *Clients
}

// Create implements leases.Manager. Every lease expires after at most maxClientLease: otherwise
// leases of dead clients would fill the disk.
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

// clientLeaseLabels returns the labels of a new lease. Pure.
func clientLeaseLabels(asked map[string]string, now time.Time) (map[string]string, error) {
	labels := map[string]string{}
	maps.Copy(labels, asked)
	latest := now.Add(maxClientLease)
	end := latest
	if text, ok := labels[disk.ExpireLabel]; ok {
		asked, err := time.Parse(time.RFC3339, text)
		if err != nil {
			return nil, fmt.Errorf("label %s: %w: %w", disk.ExpireLabel, err, errdefs.ErrInvalidArgument)
		}
		if asked.Before(latest) {
			end = asked
		}
	}
	labels[disk.ExpireLabel] = end.UTC().Format(time.RFC3339)
	labels[disk.ClientLabel] = "true"
	delete(labels, pull.PullLabel)
	delete(labels, pull.BootLabel)
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
		c.of.collectSoon()
		return nil
	}
	return c.of.Collect(ctx)
}

// List implements leases.Manager. It omits expired leases.
func (c *clientLeases) List(ctx context.Context, filters ...string) ([]leases.Lease, error) {
	all, err := c.leases.List(ctx, filters...)
	var own []leases.Lease
	for _, l := range all {
		if disk.IsClientLease(l) && !disk.IsExpired(l, time.Now()) {
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
