package cli

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-cri/berth/pkg/config"
)

// PlaceFlags adds the flags of "berth serve" for the places of the configuration.
func PlaceFlags(cmd *cobra.Command, o *config.Options) {
	flags := cmd.Flags()
	flags.StringVarP(&o.File, "config", "c", "", "main configuration file (default "+config.DefaultFile+", which may be absent)")
	flags.StringVar(&o.DropInDir, "drop-in-dir", "", "directory of drop-ins (default conf.d beside the main file)")
	flags.StringVar(&o.VendorDir, "vendor-dir", "", "directory of drop-ins of packages (default "+config.DefaultVendorDir+")")
	SearchFlag(cmd, o, "where to look for runtimes if the main file has no handlers")
}

// SearchFlag adds the flag for directories of runtimes. It also makes all paths in o absolute, as
// package config requires.
func SearchFlag(cmd *cobra.Command, o *config.Options, usage string) {
	cmd.Flags().StringSliceVar(&o.SearchPath, "search-path", nil, usage)
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		paths := []*string{&o.File, &o.DropInDir, &o.VendorDir}
		for i := range o.SearchPath {
			paths = append(paths, &o.SearchPath[i])
		}
		for _, p := range paths {
			if *p != "" && err == nil {
				*p, err = filepath.Abs(*p)
			}
		}
		return err
	}
}

// maxCredentials is the largest number of bytes that are read from a credentials file.
const maxCredentials = 64 << 10

// ReadCredentials reads user:password from a file, or from in for -. It returns nil without a path.
func ReadCredentials(path string, in io.Reader) (*runtimeapi.AuthConfig, error) {
	if path == "" {
		return nil, nil
	}
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxCredentials))
	if err != nil {
		return nil, err
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(text)), ":")
	if !ok || user == "" {
		return nil, errors.New("--creds-file: the file must have one line, user:password")
	}
	return &runtimeapi.AuthConfig{Username: user, Password: password}, nil
}
