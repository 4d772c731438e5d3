// Go's ways to connect: `client HOST PORT`. Built without C: a static binary that knows no C library.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"
)

func get(client *http.Client, url string) string {
	answer, err := client.Get(url)
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err.Error()
	}
	return strings.TrimSpace(string(text))
}

func main() {
	address := net.JoinHostPort(os.Args[1], os.Args[2])
	base := "http://" + address
	for i := range 3 {
		fmt.Println(get(http.DefaultClient, fmt.Sprintf("%s/kept/%d", base, i)))
	}
	fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := make([]string, 50)
	var all sync.WaitGroup
	for i := range answers {
		all.Add(1)
		go func() {
			defer all.Done()
			answers[i] = get(fresh, fmt.Sprintf("%s/many/%d", base, i))
		}()
	}
	all.Wait()
	for _, answer := range answers {
		fmt.Println(answer)
	}
	limited, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(limited, "tcp", address)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Fprintln(conn, "a line")
	conn.(*net.TCPConn).CloseWrite()
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		fmt.Println(lines.Text())
	}
	fmt.Println(conn.RemoteAddr().String() == address)
}
