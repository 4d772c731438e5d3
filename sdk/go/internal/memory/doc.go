// Package memory is contract/memory.md in Go: pools, leases, rings, channels and desks in memory that processes share.
//
// Pure, and checked against contract/vectors/memory.json: Descriptor, Word, Geometry, Envelope, the head. On mapped memory:
// Region, Pool, Member, Lease, Producer, Consumer, Channel, Desk. Every pointer into a mapping is made in region.go.
//
// Nothing that another process can write is believed: it is copied, checked, and only the copy is used. Atomics of
// sync/atomic are sequentially consistent, so they are the full fences of the contract too.
package memory

// MemoryError names what is wrong with something that came from outside, in the words of the contract's vectors.
type MemoryError string

// Error makes a Fault an error.
func (f MemoryError) Error() string { return "shared memory: " + string(f) }

// EndpointID is a number of the domain, 1…65535.
type EndpointID = uint16
