// Package registry asks registries for images: by hosts.toml, with credentials for whom
// they are meant for, within bounds of size and time.
//
//	c := registry.New(ctx, registry.Options{Limits: l, Window: time.Minute, Progress: p})
//	defer c.Close()
//	desc, err := c.Resolve(ctx, "ghcr.io/owner/app:1")
//	f, err := c.Fetcher(ctx, "ghcr.io/owner/app:1")
//
// A Client is of one pull. Everything may be called at any time from any goroutine.
package registry
