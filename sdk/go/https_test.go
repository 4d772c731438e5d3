package nearpath_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nearpath.io/nearpath"
)

// A gateway at an https URL. What is trusted is read once: SSL_CERT_FILE is set for a process of its own, this one again.
func TestAGatewayThatSpeaksTLS(t *testing.T) {
	if os.Getenv("NEARPATH_TEST_SECURE") != "" {
		answer, err := nearpath.Call(within(t), "currency", nil)
		if err != nil || string(answer.Body) != "1.07" || answer.Path != nearpath.PathHTTP {
			t.Fatal(answer, err)
		}
		return
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		skip(t, "openssl is missing: it makes the gateway's certificate")
	}
	folder := t.TempDir()
	openfaas(t, "--tls", folder)
	if _, err := nearpath.Call(within(t), "currency", nil); err == nil {
		t.Error("an untrusted gateway was called")
	}
	caller := exec.Command(os.Args[0], "-test.run=^TestAGatewayThatSpeaksTLS$")
	caller.Env = append(os.Environ(), "NEARPATH_TEST_SECURE=1", "SSL_CERT_FILE="+filepath.Join(folder, "authority.pem"))
	if output, err := caller.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
