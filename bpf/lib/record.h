/* The format of what endpoints send: contract/memory.md, "Record". Little endian, like everything there. */
#pragma once

#include <linux/types.h>

struct record {
	__u8 descriptor[16];
	__u32 channel;
	/* Overwritten by the program, so that a sender cannot claim to be another. */
	__u32 sender;
	__u64 zero;
};
