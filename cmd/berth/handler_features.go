package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berth-cri/berth/pkg/admin/client"
	adminv1 "github.com/berth-cri/berth/proto/berth/admin/v1"
)

func handlerFeaturesCommand() *cobra.Command {
	r := &remote{timeout: callTimeout}
	c := &cobra.Command{
		Use:   "features [NAME]",
		Short: "Show what a handler's runtime can do, or that of all handlers side by side",
		Long: `Show what a handler's runtime says that it can do. Without a name the handlers are
shown side by side. With a name, -o json has the runtime's whole document in
featuresJson.`,
		Args: cobra.MaximumNArgs(1),
		RunE: r.call(func(ctx context.Context, c *cobra.Command, daemon *client.Client, args []string) error {
			if len(args) == 1 {
				resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if len(resp.GetFeatures()) == 0 {
					return degraded("handler %q has not said what it can do; see \"berth handler probe %s\"", resp.GetHandler().GetName(), resp.GetHandler().GetName())
				}
				return r.print(c.OutOrStdout(), resp, func(w io.Writer) error {
					return featureTable([]*adminv1.GetHandlerResponse{resp}, r.wide()).write(w)
				})
			}
			all, err := allHandlers(ctx, daemon)
			if err != nil {
				return err
			}
			return encode(c.OutOrStdout(), r.output, map[string]any{"handlers": featuresOf(all)}, featureTable(all, r.wide()).write)
		}),
		ValidArgsFunction: r.completeHandlers,
	}
	r.flags(c)
	return c
}

// handlerFeatures is what a runtime says that it can do, by the feature's name.
type handlerFeatures struct {
	Name     string          `json:"name"`
	Features map[string]bool `json:"features"`
}

func featuresOf(handlers []*adminv1.GetHandlerResponse) []handlerFeatures {
	all := []handlerFeatures{}
	for _, h := range handlers {
		one := handlerFeatures{h.GetHandler().GetName(), map[string]bool{}}
		for _, f := range h.GetFeatures() {
			one.Features[f.GetName()] = f.GetSupported()
		}
		all = append(all, one)
	}
	return all
}

// allHandlers asks about every handler; one that goes meanwhile is left out.
func allHandlers(ctx context.Context, daemon *client.Client) ([]*adminv1.GetHandlerResponse, error) {
	list, err := daemon.ListHandlers(ctx, &adminv1.ListHandlersRequest{})
	if err != nil {
		return nil, err
	}
	var all []*adminv1.GetHandlerResponse
	for _, h := range list.GetHandlers() {
		resp, err := daemon.GetHandler(ctx, &adminv1.GetHandlerRequest{Name: h.GetName()})
		if status.Code(err) == codes.NotFound {
			continue
		}
		if err != nil {
			return nil, err
		}
		all = append(all, resp)
	}
	return all, nil
}

// featureTable has a row for each feature and a column for each handler.
func featureTable(handlers []*adminv1.GetHandlerResponse, wide bool) *table {
	t := &table{header: []string{"FEATURE"}, whole: wide}
	var names []string
	rows := map[string][]string{}
	for i, h := range handlers {
		t.header = append(t.header, h.GetHandler().GetName())
		for _, f := range h.GetFeatures() {
			row, known := rows[f.GetName()]
			if !known {
				names = append(names, f.GetName())
				row = make([]string, len(handlers))
				for j := range row {
					row[j] = "?"
				}
				rows[f.GetName()] = row
			}
			row[i] = map[bool]string{true: "yes", false: "-"}[f.GetSupported()]
		}
	}
	for _, name := range names {
		t.add(append([]string{name}, rows[name]...)...)
	}
	return t
}
