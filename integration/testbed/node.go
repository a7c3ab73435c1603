package testbed

// StartRunc starts a berth whose one handler is runc, with a network of its own, and
// has it pull busybox, which a registry has under that name. More of its
// configuration is TOML.
func StartRunc(t T, name, config string) (b *Berth, image string) {
	t.Helper()
	registry := NewRegistry(t, RegistryOptions{})
	image = registry.Push(t, name, Busybox(t))
	b = StartBerth(t, Options{
		Runtimes: map[string]string{"runc": Part(t, Runc)}, CNI: NewCNI(t),
		Registries: []*Registry{registry}, Config: config,
	})
	b.Client.Pull(t, "", image)
	return b, image
}
