// Package configs holds the configuration files that berth ships.
package configs

import _ "embed"

// Berth is the commented configuration, /etc/berth/config.toml of a new
// installation. Every key in it is commented out and shows its default.
//
//go:embed berth.toml
var Berth []byte
