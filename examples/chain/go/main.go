// Says its name, and how it reached the function that NEXT names.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"nearpath.io/nearpath"
)

func say(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
	next := os.Getenv("NEXT")
	if next == "" {
		return &nearpath.Response{Body: []byte("go")}, nil
	}
	answer, err := nearpath.Call(ctx, next, req.Body)
	if err != nil {
		return nil, err
	}
	return &nearpath.Response{Body: fmt.Appendf(nil, "go -%s-> %s", answer.Path, answer.Body)}, nil
}

func main() {
	if err := nearpath.Serve(say); err != nil {
		log.Fatal(err)
	}
}
