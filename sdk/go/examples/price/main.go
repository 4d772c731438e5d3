// Price is a function that requests the rate from another one and forwards it.
package main

import (
	"context"
	"log"

	"nearpath.io/nearpath"
)

func price(ctx context.Context, req *nearpath.Request) (*nearpath.Response, error) {
	rate, err := nearpath.Call(ctx, "currency", req.Body)
	if err != nil {
		return nil, err
	}
	log.Printf("%d bytes came over %s", len(rate.Body), rate.Path)
	return &nearpath.Response{Body: rate.Body}, nil
}

func main() {
	if err := nearpath.Serve(price); err != nil {
		log.Fatal(err)
	}
}
