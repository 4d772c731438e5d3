//! Which socket of a port a packet belongs to: it is in the connection id, where only who knows a secret can read it.
//!
//! A port has one socket a thread (`SO_REUSEPORT`). The kernel spreads packets among them by their addresses, which is wrong for a
//! client whose address has changed, and for one whose process is about to end while its successor has begun. So the kernel runs the
//! [`CidRouting::bpf_program`] for each packet: one of an established connection goes to the process and thread that its id says; the first
//! ones of a connection go to the newest process, to a thread that follows from the id that the client has chosen. The load balancers of
//! draft-ietf-quic-load-balancers do the same between machines.
//!
//! Processes that serve the port at the same time are its [`ProcessPart`]s, eight at most. The kernel numbers sockets in the order in which they were
//! bound, and moves the last one into the place of one that is closed: so every process holds the sockets of all parts open, and the part of one
//! that has ended goes to the next.
//!
//! An id must not tell an onlooker which ids belong together (RFC 9000 section 5.1): it is random in all its bits, and only the product
//! of its first half with a secret tells part and thread.

mod program;

use std::ops::Range;
use std::time::Duration;

use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use ring::rand::{SecureRandom, SystemRandom};

pub use program::BpfInstruction;

/// Octets of an id; part and thread are in the first four.
const CID_BYTES: usize = 8;
/// Processes that may serve a port at the same time.
pub const MAX_PARTS: usize = 8;
/// Bits of a product's upper half that tell the thread; the three above them tell the part.
const THREAD_BITS: u32 = 13;
/// Most threads of a process: few enough for a thread's share of the numbers to be even.
const MAX_THREADS: u32 = 1 << 10;

/// The sockets of one process: numbers `first` to `first + threads`, one a thread. Without threads: of nobody yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessPart {
    first: u32,
    threads: u32,
}

impl ProcessPart {
    /// The kernel's numbers of its sockets.
    pub fn socket_numbers(&self) -> Range<usize> {
        self.first as usize..(self.first + self.threads) as usize
    }
}

/// A [`CidRouting`] in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CidRoutingState {
    /// What hides part and thread in an id.
    pub secret: u32,
    /// The teller's own part.
    pub own_part: usize,
    /// First socket and threads of each part.
    pub parts: [(u32, u32); MAX_PARTS],
}

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CidRouting {
    /// Odd, so that it has an inverse.
    secret: u32,
    inverse: u32,
    parts: [ProcessPart; MAX_PARTS],
    /// The part of this process, which is the newest.
    own_part: usize,
}

impl CidRouting {
    /// For the first process on a port, with so many threads and a new secret. `NoConnection`: the system has no randomness.
    pub fn new(threads: usize) -> Option<Self> {
        let mut bytes = [0; 4];
        SystemRandom::new().fill(&mut bytes).ok()?;
        Some(Self::with_secret(u32::from_le_bytes(bytes), threads))
    }

    /// With a secret that is known.
    fn with_secret(secret: u32, threads: usize) -> Self {
        let mut parts = [ProcessPart::default(); MAX_PARTS];
        parts[0].threads = u32::try_from(threads)
            .unwrap_or(u32::MAX)
            .clamp(1, MAX_THREADS);
        Self::from_parts(secret, parts, 0)
    }

    fn from_parts(secret: u32, parts: [ProcessPart; MAX_PARTS], own_part: usize) -> Self {
        let secret = secret | 1;
        // Newton's iteration for the inverse modulo 2³²: each step doubles the bits that are right, three at the start.
        let inverse = (0..4).fold(secret, |x, _| {
            x.wrapping_mul(2_u32.wrapping_sub(secret.wrapping_mul(x)))
        });
        Self {
            secret,
            inverse,
            parts,
            own_part,
        }
    }

    /// For the next process, with `threads` threads or fewer; `ended` are the parts whose processes have ended. It takes one of those if it has
    /// the right size, else one behind all others, else any that is not too large. `NoConnection`: there is no room for one more process.
    #[must_use]
    pub fn next_process(&self, ended: &[usize], threads: usize) -> Option<Self> {
        let threads = u32::try_from(threads)
            .unwrap_or(u32::MAX)
            .clamp(1, MAX_THREADS);
        let of_size = |fits: &dyn Fn(u32) -> bool| {
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

    /// What the next process has to know: the secret, its own part, and of each part its first socket and its threads.
    pub fn to_state(&self) -> CidRoutingState {
        CidRoutingState {
            secret: self.secret,
            own_part: self.own_part,
            parts: self.parts.map(|part| (part.first, part.threads)),
        }
    }

    /// What the process before this one told. `NoConnection`: it makes no sense.
    pub fn from_state(state: &CidRoutingState) -> Option<Self> {
        let parts = state
            .parts
            .map(|(first, threads)| ProcessPart { first, threads });
        let fits = |part: &ProcessPart| {
            part.threads <= MAX_THREADS && part.first <= MAX_THREADS * MAX_PARTS as u32
        };
        let own = parts.get(state.own_part)?;
        (parts.iter().all(fits) && own.threads > 0)
            .then(|| Self::from_parts(state.secret, parts, state.own_part))
    }

    /// How many threads this process has.
    pub fn thread_count(&self) -> usize {
        self.parts[self.own_part].threads as usize
    }

    /// Sockets of all parts.
    pub fn socket_count(&self) -> usize {
        self.parts.iter().map(|part| part.threads as usize).sum()
    }

    /// The part of this process.
    pub fn own_part(&self) -> usize {
        self.own_part
    }

    /// All parts that there are, with their numbers.
    pub fn parts(&self) -> impl Iterator<Item = (usize, ProcessPart)> + '_ {
        self.parts
            .iter()
            .copied()
            .enumerate()
            .filter(|(_, part)| part.threads > 0)
    }

    /// The socket that a packet of an established connection belongs to, by the first four octets of its id. An id that is of no part
    /// belongs to the newest.
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

    /// An id for a connection of this process's `thread`, made from as much randomness.
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
        }; // the last round may be cut short
        let high = (self.own_part as u32) << THREAD_BITS | high;
        let mut id = random;
        id[..4].copy_from_slice(&(high << 16 | low).wrapping_mul(self.inverse).to_be_bytes());
        id
    }

    /// What makes the ids of a thread's connections.
    pub fn cid_generator(&self, thread: usize) -> Box<dyn ConnectionIdGenerator> {
        Box::new(ThreadCidGenerator {
            routing: *self,
            thread,
            random: SystemRandom::new(),
        })
    }

    /// The program for `SO_ATTACH_REUSEPORT_CBPF` (socket(7)): it sees a datagram's payload and returns a socket's number, in the order
    /// in which they were bound.
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
