// Package rules decides what a handler can do for pods on this node, and how
// that is known.
//
// It is pure: what the runtime said about itself, what was looked at on this node
// and what self-check pods did go in, a capability.Table comes out.
//
// What preflight refuses is "no" here, because preflight is asked, and what is "yes"
// it does not refuse. The reverse need not hold: of what a runtime does not tell
// nothing is refused, and the answer is "unknown".
package rules
