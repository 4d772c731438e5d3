/* Redirects descriptors between the endpoints of one security domain. Runs once for each record that an endpoint sends.
 *
 * The sender is the endpoint that the node made the socket for. The receiver is the one that the node stored for that
 * sender and channel. Of the record itself only the channel number is used. A record without a route goes to the node,
 * which reads it on its own end of the sender's socket.
 *
 * Every verdict is a redirect of its own. SK_PASS is not enough: the message keeps the target of an earlier record of
 * the same send, and the kernel would use it. SK_DROP is not enough either: it stays with the sender's socket for ever.
 * It is used only for a socket that has no endpoint.
 */
#include "lib/helpers.h"
#include "lib/endpoints.h"
#include "lib/record.h"

/* Returns the first record in contiguous memory, or nothing if less than a record was sent. */
INLINE struct record *first_record(struct sk_msg_md *msg)
{
	if (msg->data + sizeof(struct record) > msg->data_end &&
	    bpf_msg_pull_data(msg, 0, sizeof(struct record), 0))
		return 0;
	/* The verifier forgets the earlier check, because pulling moves the data. */
	if (msg->data + sizeof(struct record) > msg->data_end)
		return 0;
	return msg->data;
}

INLINE int redirect_to_node(struct sk_msg_md *msg, __u32 sender, __u32 reason)
{
	count(reason);
	return bpf_msg_redirect_hash(msg, &audit_sockets, &sender, BPF_F_INGRESS);
}

SEC("sk_msg")
int redirect_record(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct record *record;
	struct channel_key key = {};
	struct channel_route *route;
	__u32 *sender;

	if (!sk)
		return SK_DROP;
	sender = bpf_sk_storage_get(&sender_ids, sk, 0, 0);
	if (!sender)
		return SK_DROP;
	key.sender = *sender;
	record = first_record(msg);
	if (!record) {
		/* The verdict covers these bytes and nothing of a later send: the message still has the byte count of
		 * the record before. */
		bpf_msg_apply_bytes(msg, 0);
		return redirect_to_node(msg, key.sender, MALFORMED);
	}
	/* The kernel coalesces sends: this verdict is for one record, then the program runs for the next. */
	bpf_msg_apply_bytes(msg, sizeof(struct record));
	/* Overwrites what the sender claims to be. */
	record->sender = key.sender;
	key.channel = record->channel;
	route = bpf_map_lookup_elem(&routes, &key);
	if (!route)
		return redirect_to_node(msg, key.sender, DENIED);
	if (bpf_msg_redirect_hash(msg, &endpoints, &route->receiver, BPF_F_INGRESS) != SK_PASS)
		return redirect_to_node(msg, key.sender, ABSENT);
	/* Atomic, because several threads of one endpoint may send at once. */
	__sync_fetch_and_add(&route->records, 1);
	count(DELIVERED);
	return SK_PASS;
}

/* The programs of this directory call only helpers that do not require a GPL licence. */
char LICENSE[] SEC("license") = "Apache-2.0";
