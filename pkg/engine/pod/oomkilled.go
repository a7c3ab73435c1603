package pod

import "context"

// ExitReason is the reason that the CRI shows for an ended container.
func ExitReason(code int32, oom, unknown bool) string {
	switch {
	case oom:
		return "OOMKilled"
	case unknown:
		return "Unknown"
	case code == 0:
		return "Completed"
	}
	return "Error"
}

// NoteOOM records that a shim reported an OOM kill in a container.
func (o *Index) NoteOOM(task string) {
	c, err := o.Container(task)
	if err != nil {
		return
	}
	if c.OOM.Swap(true) {
		return
	}
	// The news may come after the exit: events have a way of their own. Whether it did is
	// looked at where the exit's record looks at OOM, or each could take itself for the first.
	c.Record(context.Background(), func(st *ContainerStatus) {
		if st.Phase == PhaseExited && st.ExitCode != 0 && st.Reason == ExitReason(st.ExitCode, false, false) {
			st.Reason = ExitReason(st.ExitCode, true, false)
		}
	})
}
