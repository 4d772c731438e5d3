// HTTP/3 by quic-go: see ../README.md.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	clientTimeout = 30 * time.Second
	url      = "https://localhost/function/tell"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), clientTimeout)
	defer cancel()
	if err := run(ctx, net.JoinHostPort(os.Args[1], os.Args[2]), os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, address, authorities string) error {
	trusted, err := trust(authorities)
	if err != nil {
		return err
	}
	line := &line{address: address, tls: &tls.Config{
		RootCAs:            trusted,
		ServerName:         "localhost",
		NextProtos:         []string{http3.NextProtoH3},
		ClientSessionCache: tls.NewLRUClientSessionCache(8),
	}}
	if err := line.complete(ctx); err != nil {
		return err
	}
	return line.early(ctx)
}

func trust(authorities string) (*x509.CertPool, error) {
	text, err := os.ReadFile(authorities)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(authorities + " holds no certificate")
	}
	return pool, nil
}

type line struct {
	address string
	tls     *tls.Config
}

// dial returns before the handshake is complete, if there is a session.
func (l *line) dial(ctx context.Context) (*quic.Conn, *http3.ClientConn, error) {
	conn, err := quic.DialAddrEarly(ctx, l.address, l.tls, &quic.Config{})
	if err != nil {
		return nil, nil, err
	}
	return conn, (&http3.Transport{}).NewClientConn(conn), nil
}

func (l *line) complete(ctx context.Context) error {
	conn, client, err := l.dial(ctx)
	if err != nil {
		return err
	}
	if err := ask(ctx, client, "get", http.MethodGet, nil); err != nil {
		return err
	}
	return errors.Join(ask(ctx, client, "post", http.MethodPost, bytes.Repeat([]byte("x"), 1<<20)), conn.CloseWithError(0x100, ""))
}

func (l *line) early(ctx context.Context) error {
	conn, client, err := l.dial(ctx)
	if err != nil {
		return err
	}
	if err := ask(ctx, client, "early get", http3.MethodGet0RTT, nil); err != nil {
		return err
	}
	// A session is used once: when this is answered, there is a new one.
	if err := ask(ctx, client, "get again", http.MethodGet, nil); err != nil {
		return err
	}
	if err := conn.CloseWithError(0x100, ""); err != nil {
		return err
	}
	if conn, client, err = l.dial(ctx); err != nil {
		return err
	}
	if err := earlyPost(ctx, client); err != nil {
		return err
	}
	return errors.Join(ask(ctx, client, "post again", http.MethodPost, []byte("body")), conn.CloseWithError(0x100, ""))
}

// earlyPost goes past quic-go, which itself holds a POST back until the handshake is complete.
func earlyPost(ctx context.Context, client *http3.ClientConn) error {
	stream, err := client.OpenRequestStream(ctx)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(stream.SendRequestHeader(request), stream.Close()); err != nil {
		return err
	}
	response, err := stream.ReadResponse()
	if err != nil {
		return err
	}
	return say("early post", response)
}

func ask(ctx context.Context, client *http3.ClientConn, step, method string, body []byte) error {
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if body == nil {
		request.Body = nil
	}
	response, err := client.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	return say(step, response)
}

func say(step string, response *http.Response) error {
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", step, err)
	}
	told := strings.TrimSpace(string(body))
	if len(body) > 1000 {
		told = fmt.Sprintf("%d bytes", len(body))
	}
	if response.StatusCode != http.StatusOK {
		told = ""
	}
	fmt.Println(strings.TrimSpace(fmt.Sprintf("%s: %d %s", step, response.StatusCode, told)))
	return nil
}
