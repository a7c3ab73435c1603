package runtimeclass

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestAmount(t *testing.T) {
	for _, c := range []struct {
		name corev1.ResourceName
		q    string
		// The nearest, and what it is below and above another.
		want, less, more string
	}{
		{"memory", "0", "0", "0", "0"},
		{"memory", "2691413", "2.6Mi", "2.5Mi", "2.6Mi"},
		{"memory", "17203Ki", "16.8Mi", "16.7Mi", "16.8Mi"},
		{"memory", "7680Ki", "7.5Mi", "7.5Mi", "7.5Mi"},
		{"memory", "8388608", "8Mi", "8Mi", "8Mi"},
		{"memory", "8388609", "8Mi", "8Mi", "8.1Mi"},
		{"memory", "8388607", "8Mi", "7.9Mi", "8Mi"},
		{"memory", "64Mi", "64Mi", "64Mi", "64Mi"},
		{"memory", "2Gi", "2Gi", "2Gi", "2Gi"},
		{"memory", "128M", "122.1Mi", "122Mi", "122.1Mi"},
		{"memory", "8039100Ki", "7850.7Mi", "7850.6Mi", "7850.7Mi"},
		{"memory", "20Ki", "20Ki", "20Ki", "0.1Mi"},
		{"memory", "1", "1", "1", "0.1Mi"},
		{"memory", "9223372036854775807", "9223372036854775807", "9223372036854775807", "9223372036854775807"},
		{"memory", "1152921504606846975", "1099511627776Mi", "1099511627775.9Mi", "1099511627776Mi"},
		{"ephemeral-storage", "47093746742", "44912.1Mi", "44912Mi", "44912.1Mi"},
		{"hugepages-2Mi", "4Mi", "4Mi", "4Mi", "4Mi"},
		{"cpu", "32804132n", "32.8m", "32.8m", "32.9m"},
		{"cpu", "9m", "9m", "9m", "9m"},
		{"cpu", "9000000n", "9m", "9m", "9m"},
		{"cpu", "2", "2", "2", "2"},
		{"cpu", "1500m", "1500m", "1500m", "1500m"},
		{"cpu", "3u", "3u", "3u", "0.1m"},
		{"cpu", "2000000000100m", "2000000000100m", "2000000000100m", "2000000000100m"},
		{"example.com/device", "1234567", "1234567", "1234567", "1234567"},
	} {
		q := resource.MustParse(c.q)
		less, more := Amounts(c.name, q, q)
		if got := Amount(c.name, q); got != c.want || less != c.less || more != c.more {
			t.Errorf("%s %s: got %s, %s and %s; want %s, %s and %s", c.name, c.q, got, less, more, c.want, c.less, c.more)
		}
		if again := resource.MustParse(c.q); q.Format != again.Format || q.Cmp(again) != 0 {
			t.Errorf("%s %s was changed", c.name, c.q)
		}
	}
}
