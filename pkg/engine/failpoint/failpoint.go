// Package failpoint names the places where a test build kills the daemon.
//
// A daemon built with the tag berth_failpoints sends itself SIGKILL at the place that
// BERTH_FAILPOINT names; in every other build Hit is empty and is compiled away. Each place is
// between two writes of one life-cycle path, so that tests prove what a crash there leaves behind.
//
// BERTH_HOLD=DIRECTORY:PLACE,PLACE... blocks the first caller at each of these places instead, and
// creates a file of the place's name in the directory. A power failure can then interrupt callers
// at all places at once.
package failpoint

// Places of a pod, in the order of its life.
const (
	SandboxReserved    = "sandbox.reserved"     // only the record is on disk
	SandboxNamespaces  = "sandbox.namespaces"   // namespaces exist, CNI has not run
	SandboxAddressed   = "sandbox.addressed"    // an address is reserved, no interface has it
	SandboxLinked      = "sandbox.linked"       // the interface has its address, which is not masqueraded
	SandboxNetworked   = "sandbox.networked"    // CNI has run, its result is not recorded
	SandboxShimStarted = "sandbox.shim-started" // a foreign shim runs, it is not recorded
	SandboxReady       = "sandbox.ready"        // recorded READY, not answered
	ContainerPlanned   = "container.planned"    // only the record is on disk
	ContainerMounted   = "container.mounted"    // root filesystem and volumes mounted, no bundle
	ContainerCreated   = "container.created"    // recorded CREATED, not answered
	ContainerRunning   = "container.running"    // the process runs, not recorded
	ContainerStopped   = "container.stopped"    // the signal was sent, the exit not recorded
	ContainerErased    = "container.erased"     // resources gone, the record is not
	SandboxStopped     = "sandbox.stopped"      // containers dead, network still up
	SandboxUnlinked    = "sandbox.unlinked"     // no interface has the address, it is still reserved
	SandboxErased      = "sandbox.erased"       // resources gone, the record is not
)

// ContainerFrozen is passed by checkpoints only: the container's processes have been frozen.
const ContainerFrozen = "container.frozen"

// ContainerRestoring is passed by containers that are restored from their own checkpoint: the root
// filesystem is restored, the memory is not.
const ContainerRestoring = "container.restoring"

// ContainerVolumes is passed by containers of images that define volumes: a volume is created, and
// no record names it.
const ContainerVolumes = "container.volumes"

// Places of pulls and imports, in this order.
const (
	ImagePart      = "image.part"      // a part of a large layer is in memory, others are being downloaded
	ImageApplied   = "image.applied"   // a layer is unpacked, and no snapshot names it; those below it may be missing
	ImageCommitted = "image.committed" // a layer is committed on those below it, others may be missing
	ImageRead      = "image.read"      // an archive is in the content store, nothing is unpacked
	ImageUnpacked  = "image.unpacked"  // the layers exist, and no record names the image
)

// ImageLinked is passed by pulls of artifacts: their files exist, and no volume has them.
const ImageLinked = "image.linked"

// ImageFlush is passed after pulls: their layers exist, and may not be on disk.
const ImageFlush = "image.flush"

// SelfCheckRunning is passed by probes: a self-check pod runs.
const SelfCheckRunning = "selfcheck.running"

// Places of the copying of a runtime's new binary, when the daemon starts or the runtime is
// replaced.
const (
	BinaryCopied = "binary.copied" // the copy is complete, and not in its place
	BinaryKept   = "binary.kept"   // the copy is in its place, and no record names it
)

// Places of pod checkpoints.
const (
	PodCheckpointNoted   = "pod-checkpoint.noted"       // the destination is recorded, no file exists
	PodCheckpointWritten = "pod-checkpoint.written"     // the runtime's files exist, the manifest does not
	PodCheckpointUnnamed = "pod-checkpoint.unnamed"     // the checkpoint is complete, it does not have its name
	PodRestoreChecked    = "pod-restore.checked"        // the checkpoint is valid, nothing is created
	PodRestoredSandbox   = "pod-restore.sandbox-made"   // the sandbox is READY, it has no containers
	PodRestoredContainer = "pod-restore.container-made" // one container is CREATED
)

// Places of the removal of pod checkpoints.
const (
	PodCheckpointRenamed = "pod-checkpoint.renamed" // the checkpoint is complete, under the name of a removal
	PodCheckpointEmptied = "pod-checkpoint.emptied" // its files are gone, the directory is not
)
