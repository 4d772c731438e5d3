/* Moves bytes between the gateway and a function's own server, without TCP's segments and acknowledgements.
 *
 * The gateway connects inside the function's network namespace. Both ends of a connection enter a map when it is
 * established. What one end sends is then put into the receive queue of the other.
 *
 * Such a queue has no window, so each direction has a limit; what exceeds it goes over TCP. The kernel reads moved
 * bytes before TCP's. So bytes may be moved only while no earlier byte of their direction waits in TCP:
 * - Requests: once one went over TCP, all later ones of the connection do. The server may still have to read it.
 * - Responses: bytes are moved until the limit, and again from the next request on. The gateway sends a request in one
 *   message, after the whole response to the one before.
 */
#include "lib/helpers.h"

/* Largest request that is moved: the kernel hands it to this program in one message (MAX_MSG_FRAGS pages). */
#define MAX_REQUEST_BYTES (16 * 1024)
/* Bytes of requests that are moved on one connection: what a server that reads nothing can hold. */
#define MAX_REQUESTS_BYTES (4 * 1024 * 1024)
/* Bytes of one response that are moved: what waits at the gateway for a slow caller. */
#define MAX_RESPONSE_BYTES (64 * 1024)
/* Connections of all functions. The kernel forgets the state of the oldest ones above it; these go on over TCP. */
#define MAX_CONNECTIONS 32768
/* Connections that are being established. */
#define MAX_AWAITED 1024

enum side { GATEWAY, SERVER };

/* One end of a connection. crates/kernel/src/bpf/loopback_redirect.rs has the same. */
struct connection_end {
	__u64 connection;
	__u32 side;
	__u32 padding;
};

/* The end that a socket is. It is kept with the socket: a port alone would name another connection later. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
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

/* What both ends know of a connection. */
struct connection_state {
	/* Bytes of requests that were moved. */
	__u32 requests_bytes;
	/* Bytes of the present response that were moved. */
	__u32 response_bytes;
	/* Whether requests go over TCP, from now on. */
	__u32 passes_requests;
	/* Whether the rest of the present response goes over TCP. */
	__u32 passes_response;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_CONNECTIONS);
	__type(key, __u64);
	__type(value, struct connection_state);
} connections SEC(".maps");

/* A connection as its server sees it, inside its network namespace. Ports are in host byte order. */
struct awaited_key {
	__u64 netns;
	__u32 client_port;
	__u32 server_port;
};

/* Connections whose gateway's end is established, and whose server's end is not. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_AWAITED);
	__type(key, struct awaited_key);
	__type(value, __u64);
} awaited SEC(".maps");

/* Indexes of the counters. crates/kernel/src/bpf/loopback_redirect.rs reads them in this order. */
enum counter { CONNECTED, MOVED, PASSED, COUNTER_COUNT };
#include "lib/counters.h"

/* sock_ops has the remote port in network byte order, in its upper half. */
static __attribute__((always_inline)) __u32 remote_port(struct bpf_sock_ops *ops)
{
	return __builtin_bswap32(ops->remote_port);
}

/* The gateway's end is established. Only sockets that the node has marked are the gateway's. */
static __attribute__((always_inline)) void add_gateway_end(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct connection_end *end = bpf_sk_storage_get(&ends, sk, 0, 0), key = {};
	struct connection_state fresh = {};
	struct awaited_key server = {};

	/* A function may have disconnected a server's socket, and connected it again. What it sends still goes to the same
	 * gateway's socket, as long as that is open. */
	if (!end || end->side != GATEWAY)
		return;
	key.connection = end->connection;
	key.side = GATEWAY;
	server.netns = bpf_get_netns_cookie(ops);
	server.client_port = ops->local_port;
	server.server_port = remote_port(ops);
	if (bpf_map_update_elem(&connections, &key.connection, &fresh, BPF_NOEXIST))
		return;
	if (bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST))
		return;
	bpf_map_update_elem(&awaited, &server, &key.connection, BPF_ANY);
}

/* The server's end is established. A function takes only connections that the gateway makes in its own namespace. */
static __attribute__((always_inline)) void add_server_end(struct bpf_sock_ops *ops, struct bpf_sock *sk)
{
	struct awaited_key server = {};
	struct connection_end key = {};
	__u64 *connection;

	server.netns = bpf_get_netns_cookie(ops);
	server.client_port = remote_port(ops);
	server.server_port = ops->local_port;
	connection = bpf_map_lookup_elem(&awaited, &server);
	if (!connection)
		return;
	key.connection = *connection;
	key.side = SERVER;
	bpf_map_delete_elem(&awaited, &server);
	if (!bpf_sk_storage_get(&ends, sk, &key, BPF_SK_STORAGE_GET_F_CREATE))
		return;
	if (!bpf_sock_hash_update(ops, &sockets, &key, BPF_NOEXIST))
		count(CONNECTED);
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

static __attribute__((always_inline)) int move_to(struct sk_msg_md *msg, __u64 connection, __u32 side)
{
	struct connection_end receiver = {};

	receiver.connection = connection;
	receiver.side = side;
	return bpf_msg_redirect_hash(msg, &sockets, &receiver, BPF_F_INGRESS) == SK_PASS;
}

static __attribute__((always_inline)) int move_request(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	if (state->passes_requests)
		return 0;
	state->response_bytes = 0;
	state->passes_response = 0;
	if (msg->size <= MAX_REQUEST_BYTES && state->requests_bytes + msg->size <= MAX_REQUESTS_BYTES &&
	    move_to(msg, id, SERVER)) {
		state->requests_bytes += msg->size;
		return 1;
	}
	state->passes_requests = 1;
	return 0;
}

static __attribute__((always_inline)) int move_response(struct sk_msg_md *msg, struct connection_state *state, __u64 id)
{
	if (state->passes_response)
		return 0;
	if (msg->size <= MAX_RESPONSE_BYTES && state->response_bytes + msg->size <= MAX_RESPONSE_BYTES &&
	    move_to(msg, id, GATEWAY)) {
		state->response_bytes += msg->size;
		return 1;
	}
	state->passes_response = 1;
	return 0;
}

SEC("sk_msg") int move_bytes(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct connection_state *state;
	struct connection_end *end;
	int is_moved;
	__u64 id;

	if (!sk)
		return SK_PASS;
	end = bpf_sk_storage_get(&ends, sk, 0, 0);
	if (!end)
		return SK_PASS;
	id = end->connection;
	state = bpf_map_lookup_elem(&connections, &id);
	if (!state)
		return SK_PASS;
	is_moved = end->side == GATEWAY ? move_request(msg, state, id) : move_response(msg, state, id);
	count(is_moved ? MOVED : PASSED);
	return SK_PASS;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
