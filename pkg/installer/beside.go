package installer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/log"

	"github.com/berth-cri/berth/pkg/installer/kubelet"
)

// Beside is the daemon that berth is put beside.
type Beside struct {
	Endpoint string   `json:"endpoint"`
	Handlers []string `json:"handlers"`
	// CgroupDriver is the daemon's, which the kubelet has as well; empty is not known.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
}

// survey asks the other daemon what it has. Once the kubelet uses berth, the journal
// knows which daemon that is.
func (i *Installer) survey(ctx context.Context, w Wanted, j *journal) (Beside, error) {
	b := Beside{Endpoint: w.Endpoint}
	var saved savedConfiguration
	if e := j.entry(configStep); e != nil {
		if err := json.Unmarshal(e.Saved, &saved); err != nil {
			return b, err
		}
		if b.Endpoint == "" {
			b.Endpoint = saved.Beside.Endpoint
		}
	}
	if b.Endpoint == "" {
		find := kubelet.Find
		if w.Kubelet {
			find = kubelet.Restartable
		}
		k, err := find(i.root())
		if err != nil {
			return b, err
		}
		b.Endpoint = k.Endpoint()
		if k.K3s && b.Endpoint == "" {
			_, err := k.Moved(socket)
			return b, err // says why
		}
	}
	b.Endpoint = kubelet.AsURL(b.Endpoint)
	if kubelet.IsBerth(b.Endpoint) {
		return b, errors.New("the kubelet uses berth already, and not by this installer: nothing to put it beside")
	}
	told := false
	err := eventually(ctx, i.patience, func() error {
		said, err := i.Backend.Ask(ctx, b.Endpoint)
		if err == nil {
			said.Endpoint = b.Endpoint
			b = said
		} else if !told {
			log.G(ctx).WithField("endpoint", b.Endpoint).Info("Waiting for the other CRI daemon")
			told = true
		}
		return err
	})
	if err != nil && saved.Beside.Endpoint == b.Endpoint {
		// It may have been stopped for good, at the end of a migration.
		log.G(ctx).WithError(err).WithField("endpoint", b.Endpoint).Warn("Failed to ask the other CRI daemon; keeping its handlers as they were")
		return saved.Beside, nil
	}
	if err != nil {
		return b, fmt.Errorf("ask the CRI daemon at %s for its handlers: %w; start it, or name another endpoint", b.Endpoint, err)
	}
	return b, nil
}

// name is the handler that leads to the daemon's default.
func (b Beside) name() string {
	if strings.Contains(b.Endpoint, "crio") {
		return "crio"
	}
	return "containerd"
}
