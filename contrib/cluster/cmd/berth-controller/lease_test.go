package main

import "testing"

// Work ends before another controller may begin, whatever the API server does not answer.
func TestDeadlines(t *testing.T) {
	if ends := renewDeadline + retryPeriod + renewDeadline + renewDeadline; ends >= leaseDuration {
		t.Errorf("a lease of %v is given back after %v", leaseDuration, ends)
	}
}
