// Package inside has the tests that run in a virtual machine: berth from its package, under the
// machine's own systemd. Later tests use what earlier ones leave in the machine; integration/vm
// runs them in order, and reboots the machine or cuts its power between them.
package inside

// Held is what TestHold prints when the power may be cut.
const Held = "all are held"
