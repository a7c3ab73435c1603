// Command server is the program that the benchmark's group "restore" starts and restores. Its start
// needs time and memory, like that of an interpreter that imports modules and loads its data. Then
// it answers HTTP requests.
//
//	server MEGABYTES
package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
)

func main() {
	if err := serve(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: server MEGABYTES")
	}
	megabytes, err := strconv.Atoi(os.Args[1])
	if err != nil {
		return err
	}
	state, err := load(uint64(megabytes) << 20)
	if err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, len(state), state[len(state)-1]["name"])
	})
	return http.ListenAndServe(":8080", nil)
}

// load decodes documents until the heap has size bytes.
func load(size uint64) (state []map[string]any, err error) {
	for n := 0; ; n++ {
		text := fmt.Sprintf(`{"name": "document %d", "tags": ["a%d", "b%d"], "body": {"title": "title %d", "words": [%d, %d, %d]}}`, n, n, n, n, n, n+1, n+2)
		var one map[string]any
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			return nil, err
		}
		state = append(state, one)
		if n%1000 != 0 {
			continue
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapAlloc >= size {
			return state, nil
		}
	}
}
