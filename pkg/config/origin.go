package config

// Origin says where the value of a full TOML key, such as "server.socket",
// came from.
func (c *Config) Origin(key string) Origin { return c.origins[key] }
