// Package image keeps container images and makes root filesystems from them.
//
// A [Store] is one directory: content, metadata, the layers of each snapshotter,
// and the writable layers of containers. It stands on containerd's libraries in
// this process; no containerd daemon is involved. [Service] is the Store's CRI
// face.
//
// # What is written when
//
// An image's record is written after its last layer is on disk, and the memory
// index changes after the record: a reader never sees an image that cannot be
// used. Everything that a pull writes hangs on a lease until then. A lease that
// is found at Open belongs to a pull that was killed; what it holds is collected
// before anything else happens, so a half unpacked layer is never taken for a
// whole one.
//
// A container costs no database write. Each (chain of layers, snapshotter) has
// one read-only view that says where the layers are; a root filesystem is an
// overlay of these with two directories made for the container. Only a
// snapshotter that is not an overlay of directories (native) gets a snapshot for
// each container.
//
// # Concurrency
//
// All methods may be called at the same time. Calls that only read take no lock
// that a download, an unpack or a collection holds.
package image
