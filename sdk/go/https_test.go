package nearpath_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"nearpath.io/nearpath"
)

// The gateway has an https URL. A process reads SSL_CERT_FILE once, so the test starts itself again with that variable.
func TestCallsToAnHTTPSGatewayVerifyItsCertificate(t *testing.T) {
	if os.Getenv("NEARPATH_TEST_SECURE") != "" {
		answer, err := nearpath.Call(testContext(t), "currency", nil)
		if err != nil || string(answer.Body) != "1.07" || answer.Path != nearpath.PathHTTP {
			t.Fatal(answer, err)
		}
		return
	}
	if _, err := exec.LookPath("openssl"); err != nil {
		skip(t, "openssl is missing: it creates the gateway's certificate")
	}
	folder := t.TempDir()
	startOpenFaaS(t, "--tls", folder)
	if _, err := nearpath.Call(testContext(t), "currency", nil); err == nil {
		t.Error("an untrusted gateway was called")
	}
	caller := exec.Command(os.Args[0], "-test.run=^TestCallsToAnHTTPSGatewayVerifyItsCertificate$")
	caller.Env = append(os.Environ(), "NEARPATH_TEST_SECURE=1", "SSL_CERT_FILE="+filepath.Join(folder, "authority.pem"))
	if output, err := caller.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, output)
	}
}
