// Package probe asks a runtime binary what it is: its name and version, the
// OCI version it speaks, and the features it has.
//
//	p := probe.New(shim.Protocol{})
//	rt, err := p.Probe(ctx, definition)
//	if err != nil { … } // says which binary, and what to do
//	spec.Version = rt.OCIVersion()
//
// A binary is asked once for each Identity, so that a probe in front of every
// pod costs a stat. What a runtime does not say is taken as "no": the Supports
// methods are conservative. Failures are not remembered.
package probe
