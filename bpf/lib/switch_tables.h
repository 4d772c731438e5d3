/* Tables of the virtual switch: who may call whom, and where instances are. The node writes them. Programs read them, count,
 * and note denied pairs; they store what they know of a socket with the socket. All addresses are in network byte order. A function is named by its virtual address. */
#pragma once

#include "helpers.h"

/* Limits of the maps below. */
#define MAX_INSTANCES 65536
#define MAX_EDGES 262144
#define MAX_DENIALS 262144
/* Ready instances of one function that calls are spread over. */
#define MAX_BACKENDS 256
/* Functions that one caller was denied and that are counted by name. */
#define MAX_DENIAL_ROWS 256
/* Peers that one socket may answer at a time: two in each pair. A power of two. */
#define ANSWERABLE_PAIRS 512
/* Bytes of events that the node has not read. */
#define EVENT_RING_BYTES 65536
/* At most one event per caller in so many nanoseconds. */
#define EVENT_INTERVAL_NS 1000000000ULL

struct network {
	__be32 address;
	__be32 mask;
};

/* crates/kernel/src/bpf/virtual_switch/rows.rs has the same types. */
struct networks {
	/* Of virtual addresses. */
	struct network virtual;
	/* Of instances. */
	struct network instances;
	/* The node's address in the network of instances. */
	__be32 gateway;
	/* Where the gateway listens inside instances that have it. */
	__be32 local_gateway;
	/* Its port there, in the lower half. */
	__u32 local_port;
	/* First 96 bits of virtual addresses of IPv6; the last 32 are the address of IPv4. */
	__u32 ipv6_prefix[3];
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct networks);
} network_settings SEC(".maps");

/* Each instance has a user of its own, and cannot become another. */
struct caller {
	__be32 function;
	__be32 eip;
	/* The gateway listens inside. */
	__u32 has_gateway;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, __u32);
	__type(value, struct caller);
} callers SEC(".maps");

/* Functions of the instances on this node. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, __be32);
	__type(value, __be32);
} instances SEC(".maps");

/* Instances of a function that take calls. */
struct backends {
	__u32 count;
	/* Number of the next draw. */
	__u32 next;
	__be32 eips[MAX_BACKENDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, __be32);
	__type(value, struct backends);
} function_backends SEC(".maps");

/* A declared edge, or a denied pair. */
struct edge_key {
	__be32 caller;
	__be32 callee;
};

struct edge {
	/* Differs for each row: an edge that was removed and declared again counts anew. */
	__u64 generation;
	/* Of TCP. */
	__u64 connections;
	/* TCP connections for which no instance was ready on this node, not in the number above. */
	__u64 cold;
	/* TCP connections of both kinds that have ended. */
	__u64 ended;
	/* First datagrams of a socket to an instance. */
	__u64 datagram_flows;
	__u64 bytes_sent;
	__u64 bytes_received;
	/* Sum over ended connections. */
	__u64 nanoseconds;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_EDGES);
	__type(key, struct edge_key);
	__type(value, struct edge);
} edges SEC(".maps");

/* Denied connections. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_DENIALS);
	__type(key, struct edge_key);
	__type(value, __u64);
} denials SEC(".maps");

/* What one calling function may hold of the table above, and its last event. */
struct denial_share {
	__u32 rows;
	__u32 padding;
	__u64 last_event;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_INSTANCES);
	__type(key, __be32);
	__type(value, struct denial_share);
} denial_shares SEC(".maps");

/* A denied connection, for the log. */
struct denial_event {
	struct edge_key edge;
	__be32 address;
	__be16 port;
	/* IPPROTO_TCP or IPPROTO_UDP. */
	__u16 protocol;
};

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, EVENT_RING_BYTES);
} denial_events SEC(".maps");

/* What a socket asked for, and what it got. */
struct flow {
	/* IPv6, mapped for IPv4 (RFC 4291 section 2.5.5.2). */
	__u32 original[4];
	struct edge_key edge;
	/* The instance, or the gateway inside the caller's own. 0: no instance was ready here, and the address is used as it is.
	 */
	__be32 eip;
	/* Port that was asked for, in the lower half. */
	__u32 port;
	/* Time of the connect, on the monotonic clock. */
	__u64 started;
	/* Of the row that counted the connection. */
	__u64 generation;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct flow);
} flows SEC(".maps");

/* UDP sockets of the node. Each has a queue of its own, so a caller that fills one takes the place of few others. */
#define DATAGRAM_SOCKETS 16
/* Indexes of the node's sockets in the hub: its listener, and the first UDP socket.
 * crates/kernel/src/bpf/virtual_switch/absent.rs. */
enum node_socket { CONNECTIONS, DATAGRAMS };

/* The node's sockets for virtual addresses without a ready instance here. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, DATAGRAMS + DATAGRAM_SOCKETS);
	__type(key, __u32);
	__type(value, __u32);
} node_sockets SEC(".maps");

/* Peers whose datagrams a socket has received last, so that it may answer them: a hash table of pairs of slots, in which the
 * newest of a pair is the first. A slot holds address and port, or 0. */
struct answerable {
	__u64 slots[ANSWERABLE_PAIRS][2];
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct answerable);
} answerable_peers SEC(".maps");

/* Indexes of the counters. crates/kernel/src/bpf/virtual_switch/mod.rs reads them in this order. */
enum counter { DENIED, UNKNOWN_CALLER, NO_MEMORY, COUNTER_COUNT };
#include "counters.h"

INLINE int is_in(__be32 address, const struct network *network)
{
	return (address & network->mask) == network->address;
}
