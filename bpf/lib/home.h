/* The control group of the thread that makes connections: what only that thread may do asks whether it is at home. */
#pragma once

#include "helpers.h"

/* The group's number. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} home SEC(".maps");

static __attribute__((always_inline)) int at_home(void)
{
	__u32 first = 0;
	__u64 *group = bpf_map_lookup_elem(&home, &first);

	return group && *group == bpf_get_current_cgroup_id();
}
