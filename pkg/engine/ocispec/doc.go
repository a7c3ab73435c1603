// Package ocispec turns a CRI request into the OCI spec that a runtime is given.
//
// Build and BuildSandboxProcess are functions of what they are handed: the
// request, the image's configuration, the handler's Definition, what the
// runtime said about itself (probe.Runtime), and what is true of the node
// (Node). They touch the machine through Node's function fields only, so that
// every situation is one golden file in testdata.
//
// The effects that surround a spec are at the edge, each in a file of its own:
// DetectNode (facts of the machine), ResolveUser (the image's user database),
// CheckMounts (propagation of mount sources), ParseBase (base_runtime_spec),
// SELinuxLabels and Relabel, ApplyCDI.
//
// The order of a container's creation is: ResolveUser on the mounted root
// filesystem, make HostPathsToCreate, CheckMounts, Build, ApplyCDI, and Fit
// again when anything else (CDI, NRI) has changed the spec since.
//
// Requests have passed package validate, and are not checked again. Errors are
// FailedPrecondition where a request asks for what this node or runtime does not
// have, and InvalidArgument where it does not fit its image or its pod. Nothing is left out silently that would change what the workload may
// do or see.
package ocispec
