// Package preflight decides, before anything is done, whether a handler can give
// a pod what it asks for.
//
// It is pure: what the runtime said about itself and what is known of this node
// go in, nothing or the first Refusal comes out.
//
// Two rules keep it from guessing. What a runtime would refuse by itself, or what
// changes only how well a pod is guarded, is refused when the runtime says that
// it lacks it (seccomp, AppArmor, SELinux), or when its kind is known to (host
// namespaces on a kernel of its own). What a runtime that does not know it would
// silently leave out, so that a pod sees or may do more than it should (user
// namespaces, mapped ids, recursive read-only mounts), needs a runtime that says
// that it has it; the handler's features in the CRI's Status follow the same rule.
// Of a runtime that could not be asked nothing is known, and nothing is refused.
package preflight
