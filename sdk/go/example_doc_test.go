package nearpath_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"

	"nearpath.io/nearpath"
)

// gatewayOf starts a gateway with one function.
func gatewayOf(answer string) *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, answer) }))
}

// An unchanged client calls functions. For a whole process: http.DefaultTransport = nearpath.Transport{}.
func ExampleTransport() {
	gateway := gatewayOf("1.07")
	defer gateway.Close()
	client := http.Client{Transport: nearpath.Transport{Gateway: gateway.URL}}
	answer, err := client.Get("nearpath://currency/EUR")
	if err != nil {
		log.Fatal(err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(answer.Body)
	fmt.Println(answer.StatusCode, string(text))
	// Output: 200 1.07
}

func ExampleClient_Do() {
	gateway := gatewayOf("1.07")
	defer gateway.Close()
	client := nearpath.Client{Gateway: gateway.URL}
	answer, err := client.Do(context.Background(), "currency", &nearpath.Request{Path: "/EUR", Body: []byte("12")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(answer.Status, string(answer.Body), answer.Path)
	// Output: 200 1.07 http
}

func ExampleGather() {
	outcomes := nearpath.Gather(context.Background(), nearpath.GatherCall{Function: "no name"}, nearpath.GatherCall{Function: "No_Name"})
	for _, outcome := range outcomes {
		fmt.Println(nearpath.KindOf(outcome.Err))
	}
	// Output:
	// name
	// name
}
