/* Counters by index, one set per processor. The including file defines the indexes before, COUNTER_COUNT last. */
#pragma once

struct {
	/* Per processor, so that counting needs no atomic operation. */
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_COUNT);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

INLINE void count(__u32 index)
{
	__u64 *counter = bpf_map_lookup_elem(&counters, &index);

	/* Never null for these indexes, but the verifier cannot know. */
	if (counter)
		*counter += 1;
}
