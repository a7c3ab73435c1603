// Package handler defines what a runtime handler is: the Definition that a configuration gives to a
// name, the State it is in, the Route from the name to the backend that runs its pods, and the
// Table of all routes of one generation.
//
// A Table never changes. Readers load the current one from a Registry atomically and keep it for
// the whole call; a reload builds a new Table and swaps the pointer.
package handler

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"path/filepath"
	"strings"
	"time"
)

// Type is how a handler's pods are run.
type Type string

const (
	// OCI handlers name an OCI runtime binary, which runs under berth-shim.
	OCI Type = "oci"
	// CRI handlers name the socket of another CRI daemon, which runs their pods.
	CRI Type = "cri"
	// Shim handlers name a containerd shim-v2 binary, which is run unchanged.
	Shim Type = "shim"
)

// SandboxProcess selects when a sandbox gets a process of its own.
type SandboxProcess string

const (
	// SandboxProcessAuto starts a process only for a shared PID namespace, or when the runtime
	// needs a first container (runsc, shims).
	SandboxProcessAuto SandboxProcess = "auto"
	// SandboxProcessAlways starts a process in every sandbox.
	SandboxProcessAlways SandboxProcess = "always"
)

// Supervision selects how many supervisor processes an oci handler has.
type Supervision string

const (
	// SupervisionHandler is one supervisor for the pods with the same settings and binaries.
	SupervisionHandler Supervision = "handler"
	// SupervisionPod is one supervisor per pod sandbox.
	SupervisionPod Supervision = "pod"
)

// PlatformWasm is the value of Definition.Platform for WebAssembly images.
const PlatformWasm = "wasi/wasm"

// Definition is the resolved configuration of a handler. It is immutable once it is in a Table, and
// is stored with every sandbox that is created under it, so that the sandbox keeps it for life. The
// JSON form is the stored form: from v0.1.0 on, fields may be added, never renamed. The TOML names
// are the keys of a handler's table. In a table the endpoint begins with unix://; Endpoint is the
// absolute path alone.
type Definition struct {
	// Name is the handler name, a DNS-1123 label.
	Name string `json:"name"`
	// Type is "oci", "shim" or "cri". Empty means "cri" with an Endpoint, "shim" if the binary's
	// name begins with `containerd-shim-`, else "oci".
	Type Type `json:"type" toml:"runtime_type"`
	// Path is the OCI runtime (as in CRI-O) or containerd shim. Required without Endpoint. Only
	// root may have write access (docs/security.md#configuration).
	Path string `json:"path" toml:"runtime_path"`
	// Companions are files and directories that berth keeps with the binary, relative to its
	// directory (symbolic links followed), in addition to known ones
	// (docs/runtimes.md#companions). The handler is not ready without them.
	Companions []string `json:"companions,omitempty" toml:"companions"`
	// Endpoint is the socket of another CRI daemon (docs/remote.md) that runs the pods:
	// "unix:///run/containerd/containerd.sock". Only Type, RemoteHandler and the limits may be set
	// with it.
	Endpoint string `json:"endpoint,omitempty" toml:"endpoint"`
	// RemoteHandler is the handler's name in that daemon. Not set means the same name, "" the
	// default handler of that daemon.
	RemoteHandler string `json:"remoteHandler,omitempty" toml:"remote_handler"`
	// Root is the state directory of the runtime. Empty means one per handler below engine.state.
	Root string `json:"root,omitempty" toml:"runtime_root"`
	// ConfigPath is the configuration file of the runtime itself, for shims and runsc.
	ConfigPath string `json:"configPath,omitempty" toml:"runtime_config_path"`
	// OCI holds the checked options of an oci handler.
	OCI OCIOptions `json:"oci,omitzero"`
	// ShimOptions is the checked options table of a containerd-shim-runc-*
	// binary, by the names in containerd's configuration (BinaryName, IoUid).
	// Numbers are int64 from a file and float64 from a stored Definition.
	ShimOptions map[string]any `json:"shimOptions,omitempty"`
	// ShimOptionsTOML is the options table of any other shim as TOML text, because only the shim
	// knows its options.
	ShimOptionsTOML string `json:"shimOptionsTOML,omitempty"`
	// ShimOptionsType is the type URL of ShimOptionsTOML.
	ShimOptionsType string `json:"shimOptionsType,omitempty"`
	// PodAnnotations are patterns of pod annotations that the runtime sees, as for Go's path.Match:
	// '*' matches anything but '/'.
	PodAnnotations []string `json:"podAnnotations,omitempty" toml:"pod_annotations"`
	// ContainerAnnotations are patterns of container annotations, as in PodAnnotations.
	ContainerAnnotations []string `json:"containerAnnotations,omitempty" toml:"container_annotations"`
	// DefaultAnnotations are annotations that the runtime sees unless a pod sets them.
	DefaultAnnotations map[string]string `json:"defaultAnnotations,omitempty" toml:"default_annotations"`
	// PrivilegedWithoutHostDevices keeps host devices out of privileged containers.
	PrivilegedWithoutHostDevices bool `json:"privilegedWithoutHostDevices,omitempty" toml:"privileged_without_host_devices"`
	// Snapshotter replaces engine.snapshotter unless it is empty.
	Snapshotter string `json:"snapshotter,omitempty" toml:"snapshotter"`
	// Platform is the platform of images: "wasi/wasm" (docs/images.md#webassembly-images). Empty
	// means the node's platform; for shims that run WebAssembly, both.
	Platform string `json:"platform,omitempty" toml:"platform"`
	// BaseRuntimeSpec is the OCI runtime spec (JSON) that replaces the built-in one, read when a
	// pod is created.
	BaseRuntimeSpec string `json:"baseRuntimeSpec,omitempty" toml:"base_runtime_spec"`
	// CNIConfDir replaces cni.conf_dir unless it is empty.
	CNIConfDir string `json:"cniConfDir,omitempty" toml:"cni_conf_dir"`
	// ContainerCreateTimeout limits the time of one create or start call to the runtime.
	ContainerCreateTimeout time.Duration `json:"containerCreateTimeout,omitempty" toml:"container_create_timeout"`
	// SandboxProcess is when a sandbox has a process of its own. "auto": only where a pod or the
	// runtime needs one. "always": in every sandbox.
	SandboxProcess SandboxProcess `json:"sandboxProcess,omitempty" toml:"sandbox_process"`
	// Supervision replaces engine.supervision for an oci handler unless it is empty.
	Supervision Supervision `json:"supervision,omitempty" toml:"supervision"`
	// AliasOf is the handler behind this alias (docs/operations-reference.md#aliases). No other key
	// may be set with it.
	AliasOf string `json:"aliasOf,omitempty" toml:"alias_of"`
	// Candidate is the binary of a rollout, which a share of new pods gets; nil means none.
	Candidate *Candidate `json:"candidate,omitempty" toml:"candidate"`
	// Binary is BinaryCandidate in the Definition of pods that run on the candidate.
	Binary string `json:"binary,omitempty"`
	// Limits bound the handler's pods and their starts.
	Limits `json:"limits,omitzero"`
	// ProbeSelfCheck adds a self-check pod to the probes of handlers.ask_interval. The handler is
	// not ready if it fails. See docs/operations-reference.md#self-check-pods.
	ProbeSelfCheck bool `json:"probeSelfCheck,omitempty" toml:"self_check_pod"`
	// SelfCheckTimeout limits the life of a self-check pod, including its removal, in addition
	// to ContainerCreateTimeout.
	//
	// Zero means the default.
	SelfCheckTimeout time.Duration `json:"selfCheckTimeout,omitempty" toml:"self_check_timeout"`
	// Conforms are sets of properties that the handler promises
	// (docs/capabilities.md#conformant-names): "shared-kernel/v1", "sandboxed/v1", "vm/v1",
	// "wasm/v1". Self-check pods run as with ProbeSelfCheck. The handler is ready only if they find
	// all properties.
	Conforms []string `json:"conforms,omitempty" toml:"conforms"`
	// RequiredDevices are device files that the handler needs to be ready. If not set, a Kata shim
	// needs "/dev/kvm", unless the name of ConfigPath contains `remote`.
	RequiredDevices []string `json:"requiredDevices,omitempty" toml:"required_devices"`
	// Origin is file:line of the table, or how the handler was discovered. It is excluded from the
	// digest.
	Origin string `json:"origin,omitempty"`
}

// OCIOptions are the options of an oci handler.
type OCIOptions struct {
	// NoPivotRoot lets the runtime move the root with MS_MOVE, for hosts with a ramdisk as root.
	NoPivotRoot bool `json:"noPivotRoot,omitempty" toml:"no_pivot_root"`
	// NoNewKeyring lets containers share the supervisor's session keyring.
	NoNewKeyring bool `json:"noNewKeyring,omitempty" toml:"no_new_keyring"`
	// GlobalFlags are flags before the runtime's subcommand, such as ["--platform", "systrap"].
	// berth sets `--root`, `--log` and the flags of the cgroup driver itself.
	GlobalFlags []string `json:"globalFlags,omitempty" toml:"global_flags"`
}

// Limits bound a handler's pods and their starts. They do not affect how a pod runs.
type Limits struct {
	// MaxPods limits the sandboxes that run or are being created
	// (docs/operations-reference.md#limits). 0 means no limit.
	MaxPods int `json:"maxPods,omitempty" toml:"max_pods"`
	// MaxParallelStarts limits the sandboxes that are created at the same time. 0 means no limit.
	MaxParallelStarts int `json:"maxParallelStarts,omitempty" toml:"max_parallel_starts"`
	// MaxQueuedStarts limits the starts that wait, in the order of their arrival. 0 means none.
	MaxQueuedStarts int `json:"maxQueuedStarts,omitempty" toml:"max_queued_starts"`
	// StartTimeout limits the time of RunPodSandbox, including the wait. "0s" means the caller's
	// timeout.
	StartTimeout time.Duration `json:"startTimeout,omitempty" toml:"start_timeout"`
}

// The binaries of a handler during a rollout, as in records and metrics.
const (
	BinaryStable    = "stable"
	BinaryCandidate = "candidate"
)

// Candidate is the binary of a rollout.
type Candidate struct {
	// Path is the binary of the candidate. Required.
	Path string `json:"path" toml:"runtime_path"`
	// Percent is the share of new pods that run on it, 0 to 100, chosen by their UIDs. Required.
	Percent int `json:"percent" toml:"percent"`
}

// IsRuncShim reports whether a shim is containerd's for OCI runtimes, or a build of it under
// another name (containerd-shim-runc-fips). Such a shim takes runc's options, and its capabilities
// are those of the runtime that it drives.
func IsRuncShim(path string) bool {
	return strings.HasPrefix(filepath.Base(path), "containerd-shim-runc-")
}

// OwnShim reports whether each pod has a containerd shim of its own.
func (d *Definition) OwnShim() bool { return d.Type == Shim }

// WithCandidate returns the Definition of pods that run on the candidate. d must have one.
func (d *Definition) WithCandidate() *Definition {
	c := *d
	c.Path, c.Candidate, c.Binary = d.Candidate.Path, nil, BinaryCandidate
	return &c
}

// BinaryName returns BinaryStable or BinaryCandidate.
func (d *Definition) BinaryName() string { return cmp.Or(d.Binary, BinaryStable) }

// Digest returns equal values for Definitions that differ at most in their Origin.
func (d *Definition) Digest() string {
	c := *d
	c.Origin = ""
	b, err := json.Marshal(&c)
	if err != nil {
		panic("handler: a Definition is always JSON: " + err.Error())
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

type (
	definitionKey struct{}
	generationKey struct{}
)

// WithGeneration puts the generation of the table that routes a new sandbox into ctx.
func WithGeneration(ctx context.Context, generation uint64) context.Context {
	return context.WithValue(ctx, generationKey{}, generation)
}

// GenerationFrom returns the generation in ctx, or 0.
func GenerationFrom(ctx context.Context) uint64 {
	generation, _ := ctx.Value(generationKey{}).(uint64)
	return generation
}

// WithDefinition puts into ctx the Definition that routes a new sandbox or a call about images.
func WithDefinition(ctx context.Context, d *Definition) context.Context {
	return context.WithValue(ctx, definitionKey{}, d)
}

// DefinitionFrom returns the Definition in ctx, or nil.
func DefinitionFrom(ctx context.Context) *Definition {
	d, _ := ctx.Value(definitionKey{}).(*Definition)
	return d
}

// Phase is the phase of a handler.
type Phase string

const (
	// Ready handlers accept pods.
	Ready Phase = "ready"
	// NotReady handlers are configured but cannot run pods; State.Reason is the reason.
	NotReady Phase = "not-ready"
	// Cordoned handlers accept no new pods because an operator cordoned them.
	Cordoned Phase = "cordoned"
	// Draining handlers accept no new pods, because they were removed from the configuration or an
	// operator drains them.
	Draining Phase = "draining"
)

// State is a handler's phase and, unless it is ready, a one-line reason that an operator can act
// on.
type State struct {
	Phase  Phase
	Reason string
	// Since is when Phase changed.
	Since time.Time
}

// Same reports whether two states are equal except for Since.
func (s State) Same(o State) bool { return s.Phase == o.Phase && s.Reason == o.Reason }

// AcceptsPods reports whether new sandboxes may be created under the handler. Existing sandboxes
// are served in every phase.
func (s State) AcceptsPods() bool { return s.Phase == Ready }

// OwnedBinary is a program that a sandbox runs on.
type OwnedBinary struct {
	// Path is where the binary was installed. Runs is the file that is executed: a copy, or Path.
	Path string `json:"path"`
	Runs string `json:"runs"`
	// SHA256 is the digest of its content when the sandbox was created, in hex.
	SHA256 string `json:"sha256"`
	// Version is the version that the binary reported, or empty.
	Version string `json:"version,omitempty"`
}

// Owned is a sandbox of a backend, with what the router needs to route later calls about it or its
// containers.
type Owned struct {
	// Sandbox is the full ID.
	Sandbox string
	// Handler is the name of the Definition that the sandbox was created with,
	// never empty. It need not be in the current table.
	Handler string
	// UID is the pod's, or empty.
	UID string
	// Definition is that of the sandbox; nil if the backend does not report it.
	Definition *Definition
	// Generation is that of the table that routed the sandbox, counted from the start of the
	// routing daemon; 0 if the backend does not report it.
	Generation uint64
	// Binaries are the programs that the sandbox keeps: the handler's, then the one that a shim
	// drives. None if the backend does not report them.
	Binaries []OwnedBinary
	// Containers are the full IDs of the sandbox's containers, in any state.
	Containers []string
}
