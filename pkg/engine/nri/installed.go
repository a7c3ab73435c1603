package nri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/nri/pkg/api"

	"github.com/berth-cri/berth/pkg/trust"
)

// installation is the directory of the plugins to start, and whether there are any.
type installation struct {
	dir string
	any bool
}

// install finds the plugins to start. It skips a plugin that users other than root can change,
// because it would run as root. An invalid name is an error here, because the adaptation would not
// start any plugin then.
func install(c Config) (installation, error) {
	entries, err := os.ReadDir(c.PluginPath)
	if errors.Is(err, fs.ErrNotExist) {
		return installation{dir: c.PluginPath}, nil
	}
	if err != nil {
		return installation{}, fmt.Errorf("nri.plugin_path: %w", err)
	}
	var trusted []string
	refused := false
	for _, e := range entries {
		file := filepath.Join(c.PluginPath, e.Name())
		info, err := os.Stat(file) // the target of a link is what runs
		if err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			continue
		}
		_, base, err := api.ParsePluginName(e.Name())
		if err != nil {
			return installation{}, fmt.Errorf("nri.plugin_path: %s is not a plugin: its name must be two digits, a dash and a name, such as 10-example; rename or remove it: %w",
				file, errdefs.ErrInvalidArgument)
		}
		if err := mayStart(c, e.Name(), base); err != nil {
			log.G(context.Background()).WithError(err).WithField("plugin", file).Error("Failed to start NRI plugin: users other than root can change it")
			refused = true
			continue
		}
		trusted = append(trusted, file)
	}
	if !refused {
		return installation{dir: c.PluginPath, any: len(trusted) > 0}, nil
	}
	if err := linkTo(c.LinkDir, trusted); err != nil {
		return installation{}, fmt.Errorf("nri.plugin_path: %w", err)
	}
	return installation{dir: c.LinkDir, any: len(trusted) > 0}, nil
}

// mayStart refuses a plugin if users other than root can change it or its configuration.
func mayStart(c Config, name, base string) error {
	errs := []error{trust.CheckDir(c.PluginPath, trust.Program), trust.Check(filepath.Join(c.PluginPath, name), trust.Program),
		trust.CheckDir(c.PluginConfigPath, trust.Configuration)}
	for _, conf := range []string{name, base} {
		errs = append(errs, trust.Check(filepath.Join(c.PluginConfigPath, conf+".conf"), trust.Configuration))
	}
	for _, err := range errs {
		if refused, is := errors.AsType[*trust.Refused](err); is {
			return refused
		}
	}
	return nil
}

func linkTo(dir string, files []string) error {
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Symlink(f, filepath.Join(dir, filepath.Base(f))); err != nil {
			return err
		}
	}
	return nil
}
