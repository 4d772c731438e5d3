/* Descriptors from party to party: runs when a party sends on its socket, once for each record.
 *
 * The sender is who the node made the socket for, and the receiver is whom the node wrote down for that sender and channel;
 * the record itself says nothing that counts but the channel's number. What may not be sent goes to the node, which reads it
 * on its own end of the sender's socket.
 *
 * Every verdict is a redirect of its own. SK_PASS would not do: the target of an earlier record of the same send is still in
 * the message, and the kernel would take it. SK_DROP would not do either: it stays with the sender's socket for ever; it is
 * only for a socket that has nobody behind it any more.
 */
#include "lib/helpers.h"
#include "lib/parties.h"
#include "lib/record.h"

/* The record at the front, in one piece. */
static __attribute__((always_inline)) struct record *front(struct sk_msg_md *msg)
{
	if (msg->data + sizeof(struct record) > msg->data_end &&
	    bpf_msg_pull_data(msg, 0, sizeof(struct record), 0))
		return 0;
	if (msg->data + sizeof(struct record) > msg->data_end)
		return 0;
	return msg->data;
}

static __attribute__((always_inline)) int to_node(struct sk_msg_md *msg, __u32 from, __u32 why)
{
	count(why);
	return bpf_msg_redirect_hash(msg, &audits, &from, BPF_F_INGRESS);
}

SEC("sk_msg")
int descriptors(struct sk_msg_md *msg)
{
	struct bpf_sock *sk = msg->sk;
	struct record *record;
	struct way way = {};
	struct row *row;
	__u32 *identity;

	if (!sk)
		return SK_DROP;
	identity = bpf_sk_storage_get(&identities, sk, 0, 0);
	if (!identity)
		return SK_DROP;
	way.from = *identity;
	record = front(msg);
	if (!record) {
		/* Less than a record: all of it goes, and nothing of a later send. The message still has the number of bytes
		 * from the record before. */
		bpf_msg_apply_bytes(msg, 0);
		return to_node(msg, way.from, MALFORMED);
	}
	/* Records of one send come together: the verdict is for the first, then the program runs again. */
	bpf_msg_apply_bytes(msg, sizeof(struct record));
	record->from = way.from;
	way.channel = record->channel;
	row = bpf_map_lookup_elem(&access, &way);
	if (!row)
		return to_node(msg, way.from, DENIED);
	if (bpf_msg_redirect_hash(msg, &parties, &row->to, BPF_F_INGRESS) != SK_PASS)
		return to_node(msg, way.from, ABSENT);
	__sync_fetch_and_add(&row->records, 1);
	count(DELIVERED);
	return SK_PASS;
}

/* No helper here asks for the GPL. */
char LICENSE[] SEC("license") = "Apache-2.0";
