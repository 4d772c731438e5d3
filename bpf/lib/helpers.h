/* Kernel helper functions that the programs call, by their numbers in <linux/bpf.h>. libbpf headers are not needed. */
#pragma once

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline))
#define __uint(name, value) int (*name)[value]
#define __type(name, value) typeof(value) *name

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_lookup_elem;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) =
	(void *)BPF_FUNC_map_update_elem;
static long (*bpf_map_delete_elem)(void *map, const void *key) = (void *)BPF_FUNC_map_delete_elem;
static long (*bpf_sk_assign)(struct bpf_sk_lookup *ctx, void *sk, __u64 flags) = (void *)BPF_FUNC_sk_assign;
static long (*bpf_sk_release)(void *sk) = (void *)BPF_FUNC_sk_release;
static __u64 (*bpf_get_netns_cookie)(void *ctx) = (void *)BPF_FUNC_get_netns_cookie;
static __u64 (*bpf_get_socket_cookie)(void *ctx) = (void *)BPF_FUNC_get_socket_cookie;
static __u64 (*bpf_get_current_cgroup_id)(void) = (void *)BPF_FUNC_get_current_cgroup_id;
static void *(*bpf_sk_storage_get)(void *map, void *sk, void *value, __u64 flags) = (void *)BPF_FUNC_sk_storage_get;
static long (*bpf_sk_storage_delete)(void *map, void *sk) = (void *)BPF_FUNC_sk_storage_delete;
static __u64 (*bpf_get_current_uid_gid)(void) = (void *)BPF_FUNC_get_current_uid_gid;
static __u64 (*bpf_ktime_get_ns)(void) = (void *)BPF_FUNC_ktime_get_ns;
static long (*bpf_bind)(struct bpf_sock_addr *ctx, void *addr, int bytes) = (void *)BPF_FUNC_bind;
static long (*bpf_ringbuf_output)(void *map, void *data, __u64 bytes, __u64 flags) = (void *)BPF_FUNC_ringbuf_output;
static int (*bpf_set_retval)(int retval) = (void *)BPF_FUNC_set_retval;
static long (*bpf_getsockopt)(void *sk, int level, int name, void *value, int bytes) = (void *)BPF_FUNC_getsockopt;
static long (*bpf_setsockopt)(void *sk, int level, int name, void *value, int bytes) = (void *)BPF_FUNC_setsockopt;
static long (*bpf_sock_ops_cb_flags_set)(struct bpf_sock_ops *ops, int flags) = (void *)BPF_FUNC_sock_ops_cb_flags_set;
static long (*bpf_sock_hash_update)(struct bpf_sock_ops *ops, void *map, void *key, __u64 flags) =
	(void *)BPF_FUNC_sock_hash_update;
static long (*bpf_msg_redirect_hash)(struct sk_msg_md *msg, void *map, void *key, __u64 flags) =
	(void *)BPF_FUNC_msg_redirect_hash;
static long (*bpf_msg_apply_bytes)(struct sk_msg_md *msg, __u32 bytes) = (void *)BPF_FUNC_msg_apply_bytes;
static long (*bpf_msg_pull_data)(struct sk_msg_md *msg, __u32 start, __u32 end, __u64 flags) =
	(void *)BPF_FUNC_msg_pull_data;
static long (*bpf_redirect)(__u32 device, __u64 flags) = (void *)BPF_FUNC_redirect;
static long (*bpf_redirect_peer)(__u32 device, __u64 flags) = (void *)BPF_FUNC_redirect_peer;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 from, void *to, __u32 bytes) = (void *)BPF_FUNC_skb_load_bytes;
static long (*bpf_skb_change_tail)(struct __sk_buff *skb, __u32 bytes, __u64 flags) = (void *)BPF_FUNC_skb_change_tail;
static long (*bpf_skb_pull_data)(struct __sk_buff *skb, __u32 bytes) = (void *)BPF_FUNC_skb_pull_data;
