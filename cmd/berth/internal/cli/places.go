package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/berth-cri/berth/pkg/config"
)

// PlaceFlags are the flags of "berth serve" that say where a configuration is.
func PlaceFlags(cmd *cobra.Command, o *config.Options) {
	flags := cmd.Flags()
	flags.StringVarP(&o.File, "config", "c", "", "main configuration file (default "+config.DefaultFile+", which may be absent)")
	flags.StringVar(&o.DropInDir, "drop-in-dir", "", "directory of drop-ins (default conf.d beside the main file)")
	flags.StringVar(&o.VendorDir, "vendor-dir", "", "directory of drop-ins of packages (default "+config.DefaultVendorDir+")")
	SearchFlag(cmd, o, "directories to discover runtimes in if none is configured")
}

// SearchFlag is the flag for directories of runtimes. The command gets whole paths: what
// reads files goes by those only.
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
