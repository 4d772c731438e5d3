// Serves facts about books, as JSON: GET /1.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
)

// Details of a printed book.
type Details struct {
	Author    string `json:"author"`
	Year      int    `json:"year"`
	Publisher string `json:"publisher"`
	Pages     int    `json:"pages"`
	Language  string `json:"language"`
}

var books = map[string]Details{
	"1": {"Mary Shelley", 1818, "Lackington, Hughes, Harding, Mavor & Jones", 280, "English"},
	"2": {"Herman Melville", 1851, "Harper & Brothers", 635, "English"},
}

func serveDetails(response http.ResponseWriter, request *http.Request) {
	book := request.PathValue("book")
	details, known := books[book]
	if !known {
		http.Error(response, fmt.Sprintf("no details of book %q", book), http.StatusNotFound)
		return
	}
	response.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(response).Encode(details); err != nil {
		log.Print(err)
	}
}

func main() {
	http.HandleFunc("GET /{book}", serveDetails)
	log.Fatal(http.ListenAndServe("127.0.0.1:5000", nil))
}
