/* Redirects bytes between the gateway and a function's own server past TCP's segments and acknowledgements.
 *
 * The gateway connects inside the function's network namespace. Both ends of a connection enter a map when it is
 * established. What one end sends is then put into the receive queue of the other.
 *
 * Such a queue has no window, so each direction has a limit; what exceeds it goes over TCP. The kernel reads redirected
 * bytes before TCP's. So bytes are redirected only while no earlier byte of their direction can wait in TCP:
 * - Requests: once one went over TCP, all later ones of the connection do. The server may still have to read it.
 * - Responses: bytes are redirected until the limit, and again from the next request on. The gateway sends a request in
 *   one message, after the whole response to the one before. After a request over TCP, the limit covers all later
 *   responses together.
 */
#include "lib/helpers.h"

/* Largest request that is redirected. A message takes at least 16 pages (MAX_MSG_FRAGS - 1), so it is whole in one. */
#define MAX_REQUEST_BYTES (16 * 1024)
/* Bytes of requests that are redirected on one connection: what a server that reads nothing can hold.
 * crates/gateway/src/transport/loopback/connection.rs replaces the connection before. */
#define MAX_CONNECTION_REQUEST_BYTES (4 * 1024 * 1024)
/* Bytes of one response that are redirected: what waits at the gateway for a slow caller. */
#define MAX_RESPONSE_BYTES (64 * 1024)
/* Connections of all functions. Above it, the kernel forgets the least recently used state; that connection goes on over
 * TCP. */
#define MAX_CONNECTIONS 32768
/* Connections that are being established. */
#define MAX_HANDSHAKES 1024

enum side { GATEWAY, SERVER };

/* One end of a connection. crates/kernel/src/bpf/loopback_redirect.rs has the same. */
struct connection_end {
	__u64 connection_id;
	__u32 side;
	__u32 padding;
};

/* The end that a socket is. It is kept with the socket: a port alone would name another connection later. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	/* Socket storage requires this flag. */
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connection_end);
} ends SEC(".maps");

/* Sockets of both sides. Closed ones leave the map by themselves. */
struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, 2 * MAX_CONNECTIONS);
	__type(key, struct connection_end);
	__type(value, __u32);
} sockets SEC(".maps");

/* State that the programs of both ends share. */
struct connection_state {
	/* Redirected bytes of all requests. */
	__u32 request_bytes;
	/* Redirected bytes of the current response. */
	__u32 response_bytes;
	/* Set for ever by the first request over TCP. */
	__u32 requests_over_tcp;
	/* Set until the next request. */
	__u32 response_over_tcp;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__type(key, __u64);
	__type(value, struct connection_state);
} connections SEC(".maps");

/* A connection that is being established, as its server sees it. Ports are in host byte order. Addresses are not needed:
 * only the gateway's connections are stored. */
struct handshake_key {
	__u64 netns;
	__u32 client_port;
	__u32 server_port;
};

/* Ids of connections whose gateway's end is established, and whose server's end is not. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_HANDSHAKES);
	__type(key, struct handshake_key);
	__type(value, __u64);
} handshakes SEC(".maps");

/* Indexes of the counters. crates/kernel/src/bpf/loopback_redirect.rs reads them in this order. */
enum counter { CONNECTIONS, REDIRECTED, OVER_TCP, COUNTER_COUNT };
#include "lib/counters.h"

/* sock_ops has the remote port in network byte order, in its upper half. */
INLINE __u32 remote_port(struct bpf_sock_ops *ops)
{
	return __builtin_bswap32(ops->remote_port);
}

/* Adds the gateway's end. Only sockets that the node has marked are the gateway's. The kernel calls this before it sends
 * the ACK that establishes the server's end, so that end finds the handshake. */
INLINE void add_gateway_end(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct connection_end *end = bpf_sk_storage_get(&ends, sk, 0, 0), key = {};
	struct connection_state fresh = {};
	struct handshake_key handshake = {};

	/* An end of the other side connects only if its function has disconnected an accepted socket. It keeps its old
	 * peer. */
	if (!end || end->side != GATEWAY)
		return;
	key.connection_id = end->connection_id;
	key.side = GATEWAY;
	handshake.netns = bpf_get_netns_cookie(ops);
	handshake.client_port = ops->local_port;
	handshake.server_port = remote_port(ops);
	if (bpf_map_update_elem(&connections, &key.connection_id, &fresh, BPF_NOEXIST))
		return;
	if (bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST))
		return;
	bpf_map_update_elem(&handshakes, &handshake, &key.connection_id, BPF_ANY);
}

/* Adds the server's end of a connection that the gateway makes in the same namespace. */
INLINE void add_server_end(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct handshake_key handshake = {};
	struct connection_end key = {};
	__u64 *connection_id;

	handshake.netns = bpf_get_netns_cookie(ops);
	handshake.client_port = remote_port(ops);
	handshake.server_port = ops->local_port;
	connection_id = bpf_map_lookup_elem(&handshakes, &handshake);
	if (!connection_id)
		return;
	key.connection_id = *connection_id;
	key.side = SERVER;
	bpf_map_delete_elem(&handshakes, &handshake);
	if (!bpf_sk_storage_get(&ends, sk, &key, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	if (!bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST))
		count(CONNECTIONS);
}

SEC("sockops") int add_end(struct bpf_sock_ops *ops)
{
	struct bpf_sock *sk = ops->sk;

	if (!sk)
		return 1;
	if (ops->op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		add_gateway_end(ops, sk);
	else if (ops->op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		add_server_end(ops, sk);
	return 1;
}

/* Returns whether the message goes to this end. It does not if that end is in no map. */
INLINE int redirect_to(struct sk_msg_md *msg, __u64 connection_id, __u32 side)
{
	struct connection_end receiver = {};

	receiver.connection_id = connection_id;
	receiver.side = side;
	return bpf_msg_redirect_hash(msg, &sockets, &receiver, BPF_F_INGRESS) == SK_PASS;
}

/* The counts need no atomic operation: the kernel locks a socket while it sends. Both ends change them at once only if a
 * server sends what was not asked for, which harms its own response alone. */
INLINE int redirect_request(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	/* A request over TCP may take several messages, and an early response may have begun. So no response begins anew
	 * here any more. */
	if (state->requests_over_tcp)
		return 0;
	state->response_bytes = 0;
	state->response_over_tcp = 0;
	if (msg->size <= MAX_REQUEST_BYTES && state->request_bytes + msg->size <= MAX_CONNECTION_REQUEST_BYTES &&
	    redirect_to(msg, id, SERVER)) {
		state->request_bytes += msg->size;
		return 1;
	}
	state->requests_over_tcp = 1;
	return 0;
}

INLINE int redirect_response(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	if (state->response_over_tcp)
		return 0;
	if (msg->size <= MAX_RESPONSE_BYTES && state->response_bytes + msg->size <= MAX_RESPONSE_BYTES &&
	    redirect_to(msg, id, GATEWAY)) {
		state->response_bytes += msg->size;
		return 1;
	}
	state->response_over_tcp = 1;
	return 0;
}

/* Without bpf_msg_apply_bytes each message is a new one for the kernel, without an earlier target (unlike sk_msg.c). So
 * SK_PASS without a target means TCP. SK_DROP would fail the send. */
SEC("sk_msg") int redirect_message(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct connection_state *state;
	struct connection_end *end;
	int is_redirected;
	__u64 id;

	if (!sk)
		return SK_PASS;
	end = bpf_sk_storage_get(&ends, sk, 0, 0);
	if (!end)
		return SK_PASS;
	id = end->connection_id;
	state = bpf_map_lookup_elem(&connections, &id);
	if (!state)
		return SK_PASS;
	is_redirected = end->side == GATEWAY ? redirect_request(msg, state, id) : redirect_response(msg, state, id);
	count(is_redirected ? REDIRECTED : OVER_TCP);
	return SK_PASS;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
