package config

import "fmt"

// Origin is where a value came from. The zero Origin is the built-in default.
type Origin struct {
	// File is a path, or the name of a flag or of the environment.
	File string
	// Line and Column begin at 1, and are 0 where there are none.
	Line, Column int
}

// String is file:line, or "default".
func (o Origin) String() string {
	switch {
	case o.File == "":
		return "default"
	case o.Line == 0:
		return o.File
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// place is file:line:column as far as it is known.
func (o Origin) place() string {
	if o.File == "" || o.Line == 0 {
		return o.File
	}
	return fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Column)
}

// Origin says where the value of a full TOML key, such as "server.socket",
// came from.
func (c *Config) Origin(key string) Origin { return c.origins[key] }
