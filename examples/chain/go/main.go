// Returns its name and the path of its call to the function in NEXT.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"nearpath.io/nearpath"
)

func handleRequest(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
	next := os.Getenv("NEXT")
	if next == "" {
		return &nearpath.Response{Body: []byte("go")}, nil
	}
	response, err := nearpath.Call(ctx, next, req.Body)
	if err != nil {
		return nil, err
	}
	return &nearpath.Response{Body: fmt.Appendf(nil, "go -%s-> %s", response.Path, response.Body)}, nil
}

func main() {
	if err := nearpath.Serve(handleRequest); err != nil {
		log.Fatal(err)
	}
}
