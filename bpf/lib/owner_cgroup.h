/* The cgroup of the thread that makes connections. Programs use it to serve only that thread. */
#pragma once

#include "helpers.h"

/* Holds the id of the cgroup: the inode number of its directory. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} owner_cgroup SEC(".maps");

INLINE int in_owner_cgroup(void)
{
	__u32 first = 0;
	__u64 *group = bpf_map_lookup_elem(&owner_cgroup, &first);

	return group && *group == bpf_get_current_cgroup_id();
}
