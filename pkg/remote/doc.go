// Package remote is a backend that is another CRI daemon behind its unix socket:
// containerd, CRI-O, or another berth.
//
//	b, err := remote.New(remote.Options{Endpoint: "/run/containerd/containerd.sock", …})
//	b.Start(ctx) // connects, and lists what is there
//	…
//	b.Close(false)
//
// What the daemon answers is passed on unread wherever nothing has to be known
// of it, so that fields and codes that are newer than our CRI survive. What it
// has is known from its lists, which are kept on disk as well: they are what is
// listed while it does not answer.
//
// One Backend is one connection, whichever handlers use it. A loop asks the
// daemon how it is; while it is down, calls fail at once and say so, calls under
// way are ended, and nothing of this reaches calls to other backends.
package remote
