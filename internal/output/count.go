package output

import "fmt"

// Count is "1 pod" or "2 pods".
func Count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// Pods is a count of pods.
func Pods[N int | int32](n N) string { return Count(int(n), "pod", "pods") }
