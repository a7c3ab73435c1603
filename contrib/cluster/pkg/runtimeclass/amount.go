package runtimeclass

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Amount writes an amount of a resource for people: bytes in Mi and CPU in m, with one
// decimal if it is not whole. What is less than a tenth, and what is counted otherwise,
// is written as it is.
func Amount(name corev1.ResourceName, q resource.Quantity) string {
	return amount(name, q, roundNearest)
}

// Amounts writes two amounts of a resource as Amount does, so that the larger one
// is also read as the larger one.
func Amounts(name corev1.ResourceName, less, more resource.Quantity) (string, string) {
	return amount(name, less, roundDown), amount(name, more, roundUp)
}

// rounding is where what lies between two tenths goes.
type rounding int

const (
	roundDown rounding = iota
	roundNearest
	roundUp
)

// after is what is added to a rest before it is divided by a unit.
func (r rounding) after(unit int64) int64 {
	switch r {
	case roundUp:
		return unit - 1
	case roundNearest:
		return unit / 2
	}
	return 0
}

func amount(name corev1.ResourceName, q resource.Quantity, r rounding) string {
	var n, unit int64
	var suffix string
	var whole func(int64) *resource.Quantity
	switch {
	case q.Sign() <= 0 || q.CmpInt64(1<<60) >= 0:
		return q.String()
	case name == corev1.ResourceCPU && q.CmpInt64(1<<30) < 0:
		n, unit, suffix = q.ScaledValue(resource.Nano), 1e6, "m"
		whole = func(n int64) *resource.Quantity { return resource.NewMilliQuantity(n/unit, resource.DecimalSI) }
	case name == corev1.ResourceMemory, name == corev1.ResourceEphemeralStorage, strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix):
		n, unit, suffix = q.Value(), 1<<20, "Mi"
		whole = func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	default:
		return q.String()
	}
	if n%unit == 0 {
		return whole(n).String()
	}
	// In parts, for a product of the whole would not always have room.
	tenths := n/unit*10 + (n%unit*10+r.after(unit))/unit
	switch {
	case tenths == 0:
		return q.String()
	case tenths%10 == 0:
		return fmt.Sprintf("%d%s", tenths/10, suffix)
	}
	return fmt.Sprintf("%d.%d%s", tenths/10, tenths%10, suffix)
}
