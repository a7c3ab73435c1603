package rollout

import (
	"slices"
	"testing"
)

// A decision of an operator is not a fault.
func TestFaultOfARollout(t *testing.T) {
	for _, c := range []struct {
		status       *Status
		fault, label string
	}{
		{nil, "", ""},
		{&Status{State: Running}, "", "running"},
		{&Status{State: Promoted, Reason: "promoted by an operator"}, "", "promoted"},
		{&Status{State: Aborted, Reason: "slow"}, "", "aborted"},
		{&Status{State: Aborted, Reason: "3 of 3", ByItself: true}, "3 of 3", "failed"},
		{&Status{State: NotReady, Reason: NotProbedYet}, "", "not-ready"},
		{&Status{State: NotReady, Reason: "it is missing"}, "it is missing", "not-ready"},
	} {
		if fault, label := c.status.Fault(), c.status.Label(); fault != c.fault || label != c.label {
			t.Errorf("%+v: fault %q and label %q, want %q and %q", c.status, fault, label, c.fault, c.label)
		}
		if c.status != nil && !slices.Contains(Labels(), c.label) {
			t.Errorf("%q is not among the labels", c.label)
		}
	}
}
