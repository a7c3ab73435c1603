// Package inside has the tests that run in a virtual machine: berth from its package,
// under the machine's own systemd. What one test leaves there the next ones find;
// integration/vm runs them in their order, and reboots the machine or cuts its power
// between them.
package inside

// Held is what TestHold says when the power may be cut.
const Held = "all are held"
