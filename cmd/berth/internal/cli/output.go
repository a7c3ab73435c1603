package cli

import (
	"fmt"
	"strings"
	"time"

	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

// StateWord returns a state in words, such as "not-ready".
func StateWord(s adminv1.State) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.String(), "STATE_")), "_", "-")
}

// RuntimeOf returns the runtime's reported name and version, or "-".
func RuntimeOf(h *adminv1.Handler) string {
	text := strings.TrimSpace(h.GetRuntimeName() + " " + h.GetRuntimeVersion())
	if text == "" {
		return "-"
	}
	return text
}

// Short returns the beginning of a digest or id, long enough to be unique on a node.
func Short(digest string) string { return digest[:min(len(digest), 12)] }

// Ago formats the age of a time, such as "5m ago".
func Ago(t time.Time) string { return Age(time.Since(t)) + " ago" }

// Age formats a duration by its largest units.
func Age(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%dh", int(d.Hours())/24, int(d.Hours())%24)
}

// Size formats a number of bytes with a unit.
func Size(n int64) string {
	const unit = 1 << 10
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	v, i := float64(n), -1
	for v >= unit && i < len("KMGT")-1 {
		v /= unit
		i++
	}
	if v < 10 {
		return fmt.Sprintf("%.1f %ciB", v, "KMGT"[i])
	}
	return fmt.Sprintf("%.0f %ciB", v, "KMGT"[i])
}

// Took formats a duration in seconds, milliseconds or microseconds.
func Took(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d >= time.Millisecond:
		return fmt.Sprintf("%dms", d.Milliseconds())
	}
	return fmt.Sprintf("%dµs", d.Microseconds())
}

// PrunedLines returns the output of a prune command: the removed names, and their total size.
func PrunedLines(names []string, size string, dryRun bool) (lines []string) {
	if len(names) == 0 {
		return []string{"nothing to remove"}
	}
	done := "removed "
	if dryRun {
		done = "would remove "
	}
	for _, name := range append(names, size) {
		lines = append(lines, done+name)
	}
	return lines
}
