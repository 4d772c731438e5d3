//! Which thread a packet belongs to: it is in the connection id, where only who knows a secret can read it.
//!
//! A port has one socket a thread (`SO_REUSEPORT`). The kernel spreads packets among them by their addresses, which is wrong for a
//! client whose address has changed. So the kernel runs the [`Steering::program`] for each packet: one of an established
//! connection goes where its id says; the first ones of a connection, whose ids the client has chosen, go by their addresses, as
//! before. The load balancers of draft-ietf-quic-load-balancers do the same between machines.
//!
//! An id must not tell an onlooker which ids belong together (RFC 9000 section 5.1): it is random in all its bits, and only the product
//! of its first half with a secret tells the thread.

use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom, SystemRandom};

/// Octets of an id; the thread is in the first four.
const LENGTH: usize = 8;

/// One instruction of a classic BPF program: code, jump if true, jump if false, operand (`struct sock_filter`, Linux
/// `Documentation/networking/filter.rst`).
pub type Instruction = (u16, u8, u8, u32);

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steering {
    /// Odd, so that it has an inverse.
    secret: u32,
    inverse: u32,
    threads: u32,
}

impl Steering {
    /// For so many threads, with a new secret. `None`: the system has no randomness.
    pub fn new(threads: usize) -> Option<Self> {
        let mut bytes = [0; 4];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self::with(u32::from_le_bytes(bytes), threads))
    }

    /// With a secret that is known.
    fn with(secret: u32, threads: usize) -> Self {
        let secret = secret | 1;
        // Newton's iteration for the inverse modulo 2³²: each step doubles the bits that are right, three at the start.
        let inverse = (0..4).fold(secret, |x, _| x.wrapping_mul(2_u32.wrapping_sub(secret.wrapping_mul(x))));
        let threads = u32::try_from(threads).unwrap_or(u32::MAX).clamp(1, 1 << 15);
        Self { secret, inverse, threads }
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads as usize
    }

    /// The thread that an id belongs to, by its first four octets.
    pub fn thread_of(&self, id: [u8; 4]) -> usize {
        ((u32::from_be_bytes(id).wrapping_mul(self.secret) >> 16) % self.threads) as usize
    }

    /// An id for a connection of `thread`, made from as much randomness.
    fn id(&self, thread: usize, random: [u8; LENGTH]) -> [u8; LENGTH] {
        let (first, _) = random.split_first_chunk::<4>().expect("there are eight");
        let product = u32::from_be_bytes(*first);
        let (high, low) = (product >> 16, product & 0xffff);
        let wanted = u32::try_from(thread).unwrap_or(0) % self.threads;
        let high = high - high % self.threads + wanted;
        let high = if high > 0xffff { high - self.threads } else { high }; // the last round may be cut short
        let mut id = random;
        id[..4].copy_from_slice(&(high << 16 | low).wrapping_mul(self.inverse).to_be_bytes());
        id
    }

    /// What makes the ids of a thread's connections.
    pub fn generator(&self, thread: usize) -> Box<dyn ConnectionIdGenerator> {
        Box::new(Generator { steering: *self, thread, random: SystemRandom::new() })
    }

    /// The program for `SO_ATTACH_REUSEPORT_CBPF` (socket(7)): it sees a datagram's payload and returns a socket's number, in the order
    /// in which they were bound; or a number that no socket has, and the kernel goes by addresses.
    pub fn program(&self) -> Vec<Instruction> {
        use op::*;
        vec![
            (LOAD_BYTE, 0, 0, 0),
            (ANY_BIT, 0, 4, 0x80), // a short header: its id follows at once
            (AND, 0, 0, 0x30),
            (EQUAL, 0, 7, 0x20),  // a long header, not of type Handshake: the client's own id
            (LOAD_WORD, 0, 0, 6), // after flags, version and length
            (JUMP, 0, 0, 1),
            (LOAD_WORD, 0, 0, 1),
            (MULTIPLY, 0, 0, self.secret),
            (SHIFT_RIGHT, 0, 0, 16),
            (MODULO, 0, 0, self.threads),
            (RETURN_A, 0, 0, 0),
            (RETURN, 0, 0, u32::MAX),
        ]
    }
}

/// Codes of instructions, see `linux/bpf_common.h`: class, size or operation, and where the operand is.
mod op {
    pub(super) const LOAD_BYTE: u16 = 0x30;
    pub(super) const LOAD_WORD: u16 = 0x20;
    pub(super) const MULTIPLY: u16 = 0x24;
    pub(super) const AND: u16 = 0x54;
    pub(super) const SHIFT_RIGHT: u16 = 0x74;
    pub(super) const MODULO: u16 = 0x94;
    pub(super) const JUMP: u16 = 0x05;
    pub(super) const EQUAL: u16 = 0x15;
    pub(super) const ANY_BIT: u16 = 0x45;
    pub(super) const RETURN: u16 = 0x06;
    pub(super) const RETURN_A: u16 = 0x16;
}

struct Generator {
    steering: Steering,
    thread: usize,
    random: SystemRandom,
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = [0; LENGTH];
        self.random.fill(&mut random).expect("the system's randomness, once there, does not end");
        ConnectionId::new(&self.steering.id(self.thread, random))
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Runs a program as the kernel would, as far as it is used here; a load beyond the packet returns 0, as there.
    fn run(program: &[Instruction], packet: &[u8]) -> u32 {
        let (mut a, mut at) = (0_u32, 0);
        loop {
            let (code, yes, no, k) = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { yes } else { no });
            match code {
                op::LOAD_BYTE => match packet.get(k as usize) {
                    Some(byte) => a = u32::from(*byte),
                    None => return 0,
                },
                op::LOAD_WORD => match packet.get(k as usize..k as usize + 4) {
                    Some(word) => a = u32::from_be_bytes(word.try_into().unwrap()),
                    None => return 0,
                },
                op::MULTIPLY => a = a.wrapping_mul(k),
                op::AND => a &= k,
                op::SHIFT_RIGHT => a >>= k,
                op::MODULO => a %= k,
                op::JUMP => at += k as usize,
                op::EQUAL => at += jump(a == k),
                op::ANY_BIT => at += jump(a & k != 0),
                op::RETURN => return k,
                op::RETURN_A => return a,
                other => panic!("{other:#x}"),
            }
        }
    }

    proptest! {
        #[test]
        fn ids_lead_to_their_thread_in_every_packet_that_bears_them(
            secret: u32, threads in 1_usize..200, thread: usize, random: [u8; LENGTH], flags: u8, rest: [u8; 16],
        ) {
            let steering = Steering::with(secret, threads);
            let thread = thread % threads;
            let id = steering.id(thread, random);
            prop_assert_eq!(steering.thread_of(*id.first_chunk().unwrap()), thread);
            let short = [&[flags & 0x7f][..], &id, &rest].concat();
            prop_assert_eq!(run(&steering.program(), &short), thread as u32);
            let handshake = [&[flags & 0x4f | 0xa0, 0, 0, 0, 1, 8][..], &id, &rest].concat();
            prop_assert_eq!(run(&steering.program(), &handshake), thread as u32);
        }

        #[test]
        fn first_packets_go_by_their_addresses(secret: u32, threads in 1_usize..200, kind in 0_u8..2, rest: [u8; 30]) {
            let packet = [&[0xc0 | kind << 4][..], &rest].concat();
            prop_assert_eq!(run(&Steering::with(secret, threads).program(), &packet), u32::MAX);
        }

        #[test]
        fn any_packet_goes_somewhere(secret: u32, threads in 1_usize..200, packet: Vec<u8>) {
            let socket = run(&Steering::with(secret, threads).program(), &packet);
            prop_assert!(socket < threads as u32 || socket == u32::MAX);
        }
    }

    #[test]
    fn ids_are_spread_over_all_octets() {
        let mut generator = Steering::new(3).unwrap().generator(1);
        let ids: Vec<_> = (0..2_000).map(|_| generator.generate_cid()).collect();
        for at in 0..LENGTH {
            let seen: std::collections::HashSet<u8> = ids.iter().map(|id| id[at]).collect();
            assert!(seen.len() > 200, "octet {at} has {} values", seen.len());
        }
    }
}
