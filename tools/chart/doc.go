// Package chart lints and renders the chart with Helm's own module, and compares the plain
// manifests with it: "go test . -update" writes them.
package chart
