package handler_test

import (
	"fmt"

	"github.com/berth-cri/berth/pkg/handler"
)

func Example() {
	table, err := handler.NewTable(1, "runc", []handler.Route[string]{
		{Backend: "engine", Definition: &handler.Definition{Name: "runc"}, State: handler.State{Phase: handler.Ready}},
		{Backend: "engine", Definition: &handler.Definition{Name: "gvisor"}, State: handler.State{Phase: handler.Ready}},
	})
	if err != nil {
		panic(err)
	}
	route, _ := table.Lookup("") // the default handler
	fmt.Println(route.Definition.Name, route.Backend)
	fmt.Println(table.UnknownError("gvsior"))
	// Output:
	// runc engine
	// unknown runtime handler "gvsior"; did you mean "gvisor"? handlers that accept pods here: gvisor, runc (default). Correct the RuntimeClass's handler, or configure [runtimes.gvsior] and try "berth check": invalid argument
}
