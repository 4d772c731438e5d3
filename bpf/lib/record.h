/* What parties send: contract/memory.md, "Record". Little endian, as everything there. */
#pragma once

#include <linux/types.h>

struct record {
	__u8 descriptor[16];
	__u32 channel;
	__u32 from; /* written here, whatever the sender wrote */
	__u64 zero;
};
