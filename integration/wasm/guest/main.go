// Command guest is the module of the WebAssembly tests. It prints its arguments and a variable of
// its environment, and then executes its arguments as commands.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	out := func(words ...string) { _, _ = os.Stdout.WriteString(strings.Join(words, " ") + "\n") }
	out("args", strings.Join(os.Args, " "))
	out("greeting", os.Getenv("GREETING"))
	for i := 1; i < len(os.Args); i++ {
		word := os.Args[i]
		next := func() string {
			if i++; i < len(os.Args) {
				return os.Args[i]
			}
			return ""
		}
		switch word {
		case "exit":
			code, _ := strconv.Atoi(next())
			os.Exit(code)
		case "cat":
			text, err := os.ReadFile(next())
			out("file", string(text), fmt.Sprint(err))
		case "say":
			_, _ = os.Stderr.WriteString(next() + "\n")
		case "work":
			// Uses some processor time.
			sum := 0
			for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
				sum++
			}
			out("worked", fmt.Sprint(sum > 0))
		case "stay":
			out("staying")
			for {
				time.Sleep(time.Second)
			}
		}
	}
}
