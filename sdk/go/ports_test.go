package nearpath_test

import (
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
)

// Ports below those that Linux gives to outgoing connections (`ip_local_port_range`, from 32768 on): one of
// those could belong to another process by the time a server binds it.
const firstPort, portCount = 16384, 16384

var takenPorts atomic.Uint32

// freeAddress returns a loopback address that is free for TCP, once per process.
func freeAddress(t testing.TB) string {
	t.Helper()
	first := uint32(os.Getpid()) * 61 // parallel test processes begin at distant ports
	for range portCount {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+(first+takenPorts.Add(1))%portCount)
		probe, err := net.Listen("tcp", address)
		if err == nil {
			probe.Close()
			return address
		}
	}
	t.Fatal("no free loopback port")
	return ""
}
