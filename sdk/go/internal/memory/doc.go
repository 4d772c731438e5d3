// Package memory is contract/memory.md in Go: pools, leases, rings, channels and wakeup cells in memory that processes share.
//
// Pure types, checked against contract/vectors/memory.json: Descriptor, LeaseWord, PoolGeometry, Envelope, the head. Types on mapped
// memory: Region, Pool, LeaseHolder, Lease, Producer, Consumer, Channel, WakeupCell. All pointers into mappings are made in region.go.
//
// Data that another process can write is not trusted: the package copies it, checks the copy and uses only the copy. Atomics of
// sync/atomic are sequentially consistent, so they are also the full fences of the contract.
package memory

// MemoryError is the name of an error in received data, as in the contract's vectors.
type MemoryError string

// Error implements error.
func (f MemoryError) Error() string { return "shared memory: " + string(f) }

// EndpointID is the number of an endpoint in its domain, 1…65535.
type EndpointID = uint16
