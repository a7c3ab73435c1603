// Package chart lints and renders the chart with Helm's own module, and keeps the plain
// manifests what the chart says: "go test . -update" writes them.
package chart
