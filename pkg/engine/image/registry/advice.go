package registry

import (
	"context"
	"maps"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/sirupsen/logrus"

	"github.com/berth-cri/berth/pkg/engine/image/trusted"
)

// configured has the hosts of a registry as its hosts.toml says, or as containerd
// takes it for without one. Advice on a configuration is logged only if there is
// one: a registry on localhost is tried over TLS and then without, and who has
// configured neither can change neither.
func configured(ctx context.Context, o config.HostOptions) docker.RegistryHosts {
	told, untold := config.ConfigureHosts(ctx, o), config.ConfigureHosts(withoutAdvice(ctx), o)
	return func(host string) ([]docker.RegistryHost, error) {
		if o.HostDir == nil {
			return untold(host)
		}
		if dir, err := o.HostDir(host); errdefs.IsNotFound(err) || err == nil && dir == "" {
			return untold(host)
		} else if err == nil {
			if err := trusted.Hosts(dir); err != nil {
				return nil, err
			}
		}
		return told(host)
	}
}

// withoutAdvice gives ctx a logger that writes warnings and errors only.
func withoutAdvice(ctx context.Context) context.Context {
	entry := log.G(ctx)
	quiet := &logrus.Logger{
		Out: entry.Logger.Out, Formatter: entry.Logger.Formatter, Hooks: entry.Logger.Hooks,
		Level: min(entry.Logger.GetLevel(), log.WarnLevel), ExitFunc: entry.Logger.ExitFunc,
	}
	return log.WithLogger(ctx, &logrus.Entry{Logger: quiet, Data: maps.Clone(entry.Data)})
}
