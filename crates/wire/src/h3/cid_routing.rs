//! Routing of packets to sockets by connection id. Only processes that know a secret can read the
//! target from the id.
//!
//! A port has one socket for each thread (`SO_REUSEPORT`). The kernel spreads packets among them by
//! address. That is wrong for a client whose address has changed, and while an old process drains
//! beside its successor. Therefore the kernel runs the [`CidRouting::bpf_program`] for each packet.
//! A packet of an established connection goes to the process and thread in its id. The first
//! packets of a connection go to the newest process, to a thread that follows from the client's id.
//! Load balancers of draft-ietf-quic-load-balancers do the same between machines.
//!
//! Each process that serves the port is a [`ProcessPart`]; there are eight at most. The kernel
//! numbers sockets in the order in which they were bound, and moves the last one into the slot of
//! one that is closed. So every process keeps the sockets of all parts open, and the part of an
//! ended process goes to the next one.
//!
//! An id must not reveal to an observer which ids belong together (RFC 9000 section 5.1). It is
//! random in all its bits; only the product of its first half with a secret gives part and thread.

mod program;

use std::ops::Range;
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom, SystemRandom};

pub use program::BpfInstruction;

/// Octets of an id. The first four encode part and thread.
const CID_BYTES: usize = 8;
/// Maximum number of processes that serve a port at the same time.
pub const MAX_PARTS: usize = 8;
/// Bits of the product's upper half that give the thread; the three above them give the part.
const THREAD_BITS: u32 = 13;
/// Maximum number of threads of a process. With 13 bits for the thread, its numbers stay evenly
/// spread.
const MAX_THREADS: u32 = 1 << 10;

/// Sockets of one process: numbers `first` to `first + threads`, one for each thread. Without
/// threads the part is unused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessPart {
    first: u32,
    threads: u32,
}

impl ProcessPart {
    /// Numbers that the kernel gives to its sockets.
    pub fn socket_numbers(&self) -> Range<usize> {
        self.first as usize..(self.first + self.threads) as usize
    }
}

/// A [`CidRouting`] as numbers, for the next process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CidRoutingState {
    /// Secret that hides part and thread in an id.
    pub secret: u32,
    /// Part of the process that passes the state on.
    pub own_part: usize,
    /// First socket and number of threads of each part.
    pub parts: [(u32, u32); MAX_PARTS],
}

/// Connection ids and the socket that each belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CidRouting {
    /// An odd number, so that it has an inverse modulo 2³².
    secret: u32,
    inverse: u32,
    parts: [ProcessPart; MAX_PARTS],
    /// Part of this process, which is the newest.
    own_part: usize,
    /// First packets with an id of [`CID_BYTES`] are answers to connections of this port.
    is_dialed_from: bool,
}

impl CidRouting {
    /// Creates the routing of the first process on a port, with a new secret. `None`: the system
    /// has no random numbers.
    pub fn new(threads: usize) -> Option<Self> {
        let mut bytes = [0; 4];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self::with_secret(u32::from_le_bytes(bytes), threads))
    }

    /// Creates the routing with a known secret.
    fn with_secret(secret: u32, threads: usize) -> Self {
        let mut parts = [ProcessPart::default(); MAX_PARTS];
        parts[0].threads = u32::try_from(threads)
            .unwrap_or(u32::MAX)
            .clamp(1, MAX_THREADS);
        Self::from_parts(secret, parts, 0)
    }

    fn from_parts(secret: u32, parts: [ProcessPart; MAX_PARTS], own_part: usize) -> Self {
        // Only odd numbers have an inverse modulo 2³².
        let secret = secret | 1;
        // Newton's iteration for the inverse modulo 2³²: each step doubles the bits that are right,
        // three at the start.
        let inverse = (0..4).fold(secret, |x, _| {
            x.wrapping_mul(2_u32.wrapping_sub(secret.wrapping_mul(x)))
        });
        Self {
            secret,
            inverse,
            parts,
            own_part,
            is_dialed_from: false,
        }
    }

    /// Returns the routing of a port from which processes also dial. Answers to them go to the process
    /// that dials, also while another one is the newest.
    ///
    /// All peers must be parts of nearpath: they choose longer ids for their own first packets
    /// (quinn: 20 octets), and others choose eight (RFC 9000 section 7.2).
    #[must_use]
    pub fn dialed_from(self) -> Self {
        Self {
            is_dialed_from: true,
            ..self
        }
    }

    /// Routing of the next process, with at most `threads` threads; the processes of the parts
    /// `ended` have ended. It takes an ended part of the right size, else an unused one, else any
    /// smaller one. `None`: no part is free.
    #[must_use]
    pub fn next_process(&self, ended: &[usize], threads: usize) -> Option<Self> {
        let threads = u32::try_from(threads)
            .unwrap_or(u32::MAX)
            .clamp(1, MAX_THREADS);
        let of_size = |fits: &dyn Fn(u32) -> bool| {
            // This process still runs, even if the caller listed it.
            let mut candidates = ended.iter().filter(|&&at| at != self.own_part);
            candidates
                .find(|&&at| {
                    self.parts
                        .get(at)
                        .is_some_and(|part| part.threads > 0 && fits(part.threads))
                })
                .copied()
        };
        let unused = || self.parts.iter().position(|part| part.threads == 0);
        let own_part = of_size(&|size| size == threads)
            .or_else(unused)
            .or_else(|| of_size(&|size| size < threads))?;
        let mut parts = self.parts;
        // A reused part keeps its sockets; a new one gets the numbers behind all others.
        if parts[own_part].threads == 0 {
            parts[own_part] = ProcessPart {
                first: self.socket_count() as u32,
                threads,
            };
        }
        Some(Self {
            parts,
            own_part,
            ..*self
        })
    }

    /// State for the next process: the secret, its own part, and first socket and threads of each
    /// part.
    pub fn to_state(&self) -> CidRoutingState {
        CidRoutingState {
            secret: self.secret,
            own_part: self.own_part,
            parts: self.parts.map(|part| (part.first, part.threads)),
        }
    }

    /// Restores the routing from the previous process's state. `None`: the state is invalid.
    pub fn from_state(state: &CidRoutingState) -> Option<Self> {
        let parts = state
            .parts
            .map(|(first, threads)| ProcessPart { first, threads });
        // The state comes from another process; the bounds keep the arithmetic below from
        // overflowing.
        let fits = |part: &ProcessPart| {
            part.threads <= MAX_THREADS && part.first <= MAX_THREADS * MAX_PARTS as u32
        };
        let own = parts.get(state.own_part)?;
        (parts.iter().all(fits) && own.threads > 0)
            .then(|| Self::from_parts(state.secret, parts, state.own_part))
    }

    /// Number of threads of this process.
    pub fn thread_count(&self) -> usize {
        self.parts[self.own_part].threads as usize
    }

    /// Number of sockets of all parts.
    pub fn socket_count(&self) -> usize {
        self.parts.iter().map(|part| part.threads as usize).sum()
    }

    /// Part of this process.
    pub fn own_part(&self) -> usize {
        self.own_part
    }

    /// All used parts with their numbers.
    pub fn parts(&self) -> impl Iterator<Item = (usize, ProcessPart)> + '_ {
        self.parts
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, part)| part.threads > 0)
    }

    /// Number of the socket for a packet of an established connection, by the first four octets of
    /// its id. Ids of no part belong to the newest one.
    pub fn socket_for(&self, id: [u8; 4]) -> usize {
        let number = u32::from_be_bytes(id).wrapping_mul(self.secret) >> 16;
        let part = self.parts[(number >> THREAD_BITS) as usize % MAX_PARTS];
        let part = if part.threads > 0 {
            part
        } else {
            self.parts[self.own_part]
        };
        (part.first + (number & ((1 << THREAD_BITS) - 1)) % part.threads) as usize
    }

    /// Creates an id for a connection of this process's `thread` from random octets.
    fn make_cid(&self, thread: usize, random: [u8; CID_BYTES]) -> [u8; CID_BYTES] {
        let (first, _) = random.split_first_chunk::<4>().expect("there are eight");
        let (product, threads) = (
            u32::from_be_bytes(*first),
            self.parts[self.own_part].threads,
        );
        let (high, low) = (product >> 16 & ((1 << THREAD_BITS) - 1), product & 0xffff);
        let wanted = u32::try_from(thread).unwrap_or(0) % threads;
        let high = high - high % threads + wanted;
        let high = if high >> THREAD_BITS > 0 {
            high - threads
        } else {
            high
        }; // the last, incomplete round of thread numbers is avoided
        let high = (self.own_part as u32) << THREAD_BITS | high;
        let mut id = random;
        id[..4].copy_from_slice(&(high << 16 | low).wrapping_mul(self.inverse).to_be_bytes());
        id
    }

    /// Generator of the ids of a thread's connections.
    pub fn cid_generator(&self, thread: usize) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ThreadCidGenerator {
            routing: *self,
            thread,
            random: SystemRandom::new(),
        })
    }

    /// BPF program for `SO_ATTACH_REUSEPORT_CBPF` (socket(7)). It reads a datagram's payload and
    /// returns a socket's number, in the order in which the sockets were bound.
    pub fn bpf_program(&self) -> Vec<BpfInstruction> {
        program::build_program(self)
    }
}

struct ThreadCidGenerator {
    routing: CidRouting,
    thread: usize,
    random: SystemRandom,
}

impl ConnectionIdGenerator for ThreadCidGenerator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut random = [0; CID_BYTES];
        self.random
            .fill(&mut random)
            .expect("the system's randomness, once there, does not end");
        ConnectionId::new(&self.routing.make_cid(self.thread, random))
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests;
