package nearpath_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The program in the README equals the one in examples, and runs outside a domain.
func TestTheReadmeExampleRunsOutsideADomain(t *testing.T) {
	source, err := os.ReadFile("examples/price/main.go")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(readme, append([]byte("```go serve\n"), source...)) {
		t.Error("README.md and examples/price/main.go differ")
	}
	program := filepath.Join(t.TempDir(), "price")
	build := exec.CommandContext(testContext(t), "go", "build", "-o", program, "./examples/price")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	gateway := serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(append([]byte(r.URL.Path+" "), body...))
	}))
	_, port, _ := net.SplitHostPort(freeAddress(t))
	child := exec.CommandContext(testContext(t), program)
	child.Env = []string{"PORT=" + port, "gateway_url=" + gateway}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testTimeout); ; time.Sleep(time.Millisecond) {
		r, err := http.Post("http://127.0.0.1:"+port, "text/plain", strings.NewReader("hat"))
		if err != nil && time.Now().Before(end) {
			continue // not listening yet
		}
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(r.Body)
		r.Body.Close()
		if r.StatusCode != 200 || string(text) != "/function/currency hat" {
			t.Errorf("%d %s", r.StatusCode, text)
		}
		break
	}
	_ = child.Process.Signal(os.Interrupt)
	if err := child.Wait(); err != nil {
		t.Error(err)
	}
}
