package main

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"

	"github.com/berth-cri/berth/internal/test"
)

// Work ends before another controller may start, even if the API server does not answer.
func TestDeadlines(t *testing.T) {
	if ends := renewDeadline + retryPeriod + renewDeadline + renewDeadline; ends >= leaseDuration {
		t.Errorf("a lease of %v may be released only after %v", leaseDuration, ends)
	}
}

// TestLeaseIsKeptWhileWorkEnds stops a controller whose work takes three more seconds to end.
func TestLeaseIsKeptWhileWorkEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		holder := func() string {
			l, err := client.CoordinationV1().Leases(leaseNamespace).Get(context.WithoutCancel(t.Context()), lease, metav1.GetOptions{})
			if err != nil || l.Spec.HolderIdentity == nil {
				return ""
			}
			return *l.Spec.HolderIdentity
		}
		ctx, end := context.WithCancel(t.Context())
		time.AfterFunc(time.Minute, end)
		worked := false
		err := lead(ctx, client, leaseNamespace, leaderelection.NewLeaderHealthzAdaptor(healthTolerance), func() {}, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(3 * time.Second)
			worked = true
			if holder() == "" {
				t.Error("the lease was released before the work had ended")
			}
			return nil
		})
		if err != nil || !worked || holder() != "" {
			t.Errorf("lead returns %v, worked: %v, the lease is held by %q", err, worked, holder())
		}
	})
}

// TestLeaseOfAnotherIsKept stops a controller whose lease another one has taken and must keep.
func TestLeaseOfAnotherIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		leases, background := client.CoordinationV1().Leases(leaseNamespace), context.WithoutCancel(t.Context())
		ctx, end := context.WithCancel(t.Context())
		const other = "another"
		time.AfterFunc(time.Minute+time.Second, func() {
			l, err := leases.Get(background, lease, metav1.GetOptions{})
			if err == nil {
				l.Spec.HolderIdentity = new(other)
				_, err = leases.Update(background, l, metav1.UpdateOptions{})
			}
			test.Check(t, err)
			end()
		})
		err := lead(ctx, client, leaseNamespace, leaderelection.NewLeaderHealthzAdaptor(healthTolerance), func() {}, func(ctx context.Context) error {
			<-ctx.Done()
			return nil
		})
		l, getErr := leases.Get(background, lease, metav1.GetOptions{})
		if err != nil || getErr != nil || l.Spec.HolderIdentity == nil || *l.Spec.HolderIdentity != other {
			t.Errorf("lead returns %v; reading the lease, %v: %+v", err, getErr, l)
		}
	})
}
