// Package failpoint names the places where a test build kills the daemon.
//
// A daemon built with the tag berth_failpoints sends itself SIGKILL at the place
// that BERTH_FAILPOINT names; in every other build Hit is empty and is compiled
// away. Each name stands between two writes of one life-cycle path, so that the
// tests can prove what a crash there leaves behind.
//
// BERTH_HOLD=DIRECTORY:PLACE,PLACE... keeps the first caller at each of these places
// instead, and makes a file of its name in the directory: a machine whose power is cut
// then was in the middle of all of them.
package failpoint

// The places, in the order in which a pod's life passes them.
const (
	SandboxReserved    = "sandbox.reserved"     // the record is on disk, nothing else is
	SandboxNamespaces  = "sandbox.namespaces"   // namespaces exist, CNI has not run
	SandboxNetworked   = "sandbox.networked"    // CNI has run, its result is not recorded
	SandboxShimStarted = "sandbox.shim-started" // a foreign shim runs, it is not recorded
	SandboxReady       = "sandbox.ready"        // recorded READY, not answered
	ContainerPlanned   = "container.planned"    // the record is on disk, nothing else is
	ContainerMounted   = "container.mounted"    // root filesystem and volumes mounted, no bundle
	ContainerCreated   = "container.created"    // recorded CREATED, not answered
	ContainerRunning   = "container.running"    // the process runs, not recorded
	ContainerStopped   = "container.stopped"    // the signal was sent, the exit not recorded
	ContainerErased    = "container.erased"     // resources gone, the record is not
	SandboxStopped     = "sandbox.stopped"      // containers dead, network still up
	SandboxErased      = "sandbox.erased"       // resources gone, the record is not
)

// ContainerFrozen is not passed by every pod: a checkpoint has begun, and the
// container's processes stand still.
const ContainerFrozen = "container.frozen"

// ContainerRestoring is passed by containers that go on from an image of a checkpoint: their
// root filesystem is as it was, and their memory is not there.
const ContainerRestoring = "container.restoring"

// ContainerVolumes is passed by containers whose images define volumes: one of them
// is made, and nothing names it yet.
const ContainerVolumes = "container.volumes"

// These are passed by pulls and imports, in this order.
const (
	ImagePart      = "image.part"      // a part of a large layer is in memory, others are on their way
	ImageApplied   = "image.applied"   // a layer is unpacked, and no snapshot names it; those below it may not be there
	ImageCommitted = "image.committed" // a layer is put on those below it, others may be missing
	ImageRead      = "image.read"      // an archive is in the content store, nothing is unpacked
	ImageUnpacked  = "image.unpacked"  // the layers are there, and no record names the image
)

// ImageLinked is passed by pulls of artifacts: their files are there, and no volume has them.
const ImageLinked = "image.linked"

// ImageFlush is passed behind pulls: their layers are there, and may not be on disk.
const ImageFlush = "image.flush"

// SelfCheckRunning is passed by probes, not by pods: a pod of berth's own runs.
const SelfCheckRunning = "selfcheck.running"

// These two are passed where the binary of a runtime is new: by a daemon that
// starts, or one whose runtime was replaced.
const (
	BinaryCopied = "binary.copied" // the copy is whole, and not in its place
	BinaryKept   = "binary.kept"   // it is in its place, and no record names it
)

// Those of checkpoints of pods.
const (
	PodCheckpointNoted   = "pod-checkpoint.noted"       // it is on record where it is written to, nothing is there
	PodCheckpointWritten = "pod-checkpoint.written"     // the runtime's files are there, the manifest is not
	PodRestoreChecked    = "pod-restore.checked"        // the checkpoint is all right, nothing is made
	PodRestoredSandbox   = "pod-restore.sandbox-made"   // the sandbox is READY, it has no containers
	PodRestoredContainer = "pod-restore.container-made" // one container is CREATED
)

// Those of removals of such checkpoints.
const (
	PodCheckpointRenamed = "pod-checkpoint.renamed" // it is whole, under a name that says it goes
	PodCheckpointEmptied = "pod-checkpoint.emptied" // its files are gone, the directory is not
)
