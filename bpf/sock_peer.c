/* Shows the address that a function connected to as the peer of a socket that the node handed to it.
 *
 * The socket is connected to the destination's own address, which the function cannot reach. Programs connect to their
 * peer again, to cancel a query for instance. The hooks run for the cgroup in which a socket was created, and leave the
 * kernel's address to tasks of that cgroup.
 */
#include "lib/helpers.h"
#include "lib/owner_cgroup.h"

/* Both parts are in network byte order. crates/kernel/src/bpf/peer_names.rs has the same. */
struct peer_name {
	/* An IPv6 address, mapped for IPv4. */
	__u32 address[4];
	__u32 port;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct peer_name);
} peer_names SEC(".maps");

/* Returns the name that the current task sees instead of the peer's, if any. */
INLINE struct peer_name *visible_name(struct bpf_sock_addr *peer)
{
	if (!peer->sk || in_owner_cgroup())
		return 0;
	return bpf_sk_storage_get(&peer_names, peer->sk, 0, 0);
}

SEC("cgroup/getpeername4") int show_peer4(struct bpf_sock_addr *peer)
{
	struct peer_name *name = visible_name(peer);

	if (name) {
		peer->user_ip4 = name->address[3];
		peer->user_port = name->port;
	}
	return 1;
}

SEC("cgroup/getpeername6") int show_peer6(struct bpf_sock_addr *peer)
{
	struct peer_name *name = visible_name(peer);

	if (name) {
		peer->user_ip6[0] = name->address[0];
		peer->user_ip6[1] = name->address[1];
		peer->user_ip6[2] = name->address[2];
		peer->user_ip6[3] = name->address[3];
		peer->user_port = name->port;
	}
	return 1;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
