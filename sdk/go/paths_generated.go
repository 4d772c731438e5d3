// Code generated from contract/paths.toml by `cargo xtask generate`. DO NOT EDIT.

package nearpath

// Path is the path of a call.
type Path string

// The paths.
const (
	PathShm      Path = "shm"      // Shared memory of one machine: a descriptor moves, the payload stays.
	PathLoopback Path = "loopback" // HTTP to the function's own port, over a connection made inside the instance's network namespace.
	PathDirect   Path = "direct"   // TCP from instance to instance on another machine, through a virtual switch.
	PathQUIC     Path = "quic"     // A stream of a QUIC connection to the instance's watchdog.
	PathTLS      Path = "tls"      // HTTP over TLS, with certificates on both sides, over a pooled connection.
	PathHTTP     Path = "http"     // HTTP over a pooled TCP connection, in clear.
	PathPunch    Path = "punch"    // A direct connection between two workers, through a hole in each NAT.
	PathRelay    Path = "relay"    // Bytes between two workers, forwarded by the rendezvous.
	PathPool     Path = "pool"     // A warm connection of the node's pool in the place of the function's own; else the egress proxy connects.
)

// Names of the obstacles to a nearer path.
const (
	obstacleExcluded         = "excluded"           // a setting excludes this path: the function's nearpath.io/transport, or the link's relay
	obstacleOtherNode        = "other_node"         // the instance is on another machine
	obstacleNoDomain         = "no_domain"          // the function belongs to no chain (nearpath.io/chain), so it shares no memory
	obstacleOtherDomain      = "other_domain"       // caller and callee belong to different chains
	obstacleCallerNoEndpoint = "caller_no_endpoint" // the caller does not use shared memory: its calls go to the gateway over HTTP
	obstacleNoEndpoint       = "no_endpoint"        // the instance does not take calls through shared memory
	obstacleOwnPort          = "own_port"           // the function's code takes calls at its own port, which is nearer than its watchdog's shared memory
	obstacleNoRoom           = "no_room"            // the channel or the memory pool had no room for the call at that moment
	obstacleUpgrade          = "upgrade"            // an upgraded connection needs a connection of its own
	obstacleBulk             = "bulk"               // the body is long or of unknown length, which TLS carries to another machine with less CPU time
	obstacleKeptTLS          = "kept_tls"           // kept TLS connections to the node carry complete requests with less CPU time
	obstacleGRPC             = "grpc"               // gRPC needs HTTP/2 up to the function
	obstacleTrailers         = "trailers"           // the request announces trailers (`Trailer`), which messages in memory do not have
	obstacleCallerNoIdentity = "caller_no_identity" // the caller has no certificate: its calls go to the gateway over HTTP
	obstacleNoIdentity       = "no_identity"        // the instance has no certificate; its log has the cause
	obstacleUDPBlocked       = "udp_blocked"        // the instance did not answer over UDP recently; calls retry it from time to time
	obstacleNoTLS            = "no_tls"             // caller and instance do not support TLS over TCP
)

// isKnown reports whether this release defines the path.
func (p Path) isKnown() bool {
	switch p {
	case PathShm, PathLoopback, PathDirect, PathQUIC, PathTLS, PathHTTP, PathPunch, PathRelay, PathPool:
		return true
	}
	return false
}
