// The handler of bench-default and bench-chain in Go: net/http. Its response is the request's body, or the
// response of the next function. With bench_tell_instance it begins with a number of this process.
package main

import (
	"bytes"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
)

// As many idle connections as calls can be open at once: without them, most calls would begin with a dial.
var client = http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}}

// Calls the next function.
func callNext(url string, body []byte) ([]byte, error) {
	response, err := client.Post(url, "text/plain", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// Arguments: the port, and the URL of the next function if there is one.
func main() {
	var own []byte
	if os.Getenv("bench_tell_instance") != "" {
		own = fmt.Appendf(nil, "%d ", rand.Uint64())
	}
	http.HandleFunc("/", func(response http.ResponseWriter, request *http.Request) {
		body, err := io.ReadAll(request.Body)
		if err == nil && len(os.Args) > 2 {
			body, err = callNext(os.Args[2], body)
		}
		if err != nil {
			http.Error(response, err.Error(), http.StatusBadGateway)
			return
		}
		response.Header().Set("Content-Type", "text/plain")
		if own != nil {
			body = append(bytes.Clone(own), body...)
		}
		response.Write(body)
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
