//! The messages of `contract/dispatch.md`: one JSON object a packet, named by its only known member.
//!
//! Readers pass over messages and members that they do not know, so that both sides can learn new ones apart.

use nearpath_types::{FunctionId, InstanceId};
use serde::{Deserialize, Serialize};

/// Most bytes of a packet.
pub const MAX_PACKET: usize = 4096;
/// Of the protocol.
pub const VERSION: u32 = 1;

/// How a party wants to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Bell {
    /// Futex on the desk: a thread that does nothing else.
    Futex,
    /// An eventfd that does not block: an event loop.
    Eventfd,
    /// Not at all.
    None,
}

/// How descriptors go from party to party in a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Rings in shared memory; parties sleep at their desks.
    #[default]
    Ring,
    /// The kernel carries them from socket to socket.
    Sockmap,
    /// Rings; parties never sleep.
    Poll,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Mode {
    /// For leaving out what goes without saying.
    fn is_ring(&self) -> bool {
        *self == Self::Ring
    }
}

/// Who can write where in a domain's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Everybody in one pool.
    #[default]
    Shared,
    /// Every party in a pool of its own, which the others can read.
    Strict,
    /// One that this version does not know.
    #[serde(other)]
    Unknown,
}

impl Isolation {
    /// For leaving out what goes without saying.
    fn is_shared(&self) -> bool {
        *self == Self::Shared
    }
}

/// What became of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// No new calls; finish what is open.
    Withdrawn,
    /// The other side is no more.
    Dead,
}

/// What a party is on a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It calls.
    Caller,
    /// It is called.
    Callee,
}

/// The first word of a party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// [`VERSION`].
    pub version: u32,
    /// It takes calls for its function.
    #[serde(default)]
    pub serves: bool,
    /// It takes calls only while no other party of its instance does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stands_in: bool,
    /// How it is woken, unless the domain's mode knows better.
    pub bell: Bell,
    /// The modes that it can do; none: only [`Mode::Ring`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub delivery: Vec<Mode>,
    /// The kinds of domain that it can be a party of; none: only [`Isolation::Shared`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub isolation: Vec<Isolation>,
}

/// The node's answer to [`Hello`]. Descriptors: pool (not in a strict domain), desk, then the event (of an `eventfd` bell) or the
/// party's socket ([`Mode::Sockmap`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Name of the domain, for people.
    pub domain: String,
    /// The party's number.
    pub party: u16,
    /// Its function; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// Its instance; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Bytes of the pool's region; in a strict domain, of the one that the party makes.
    pub pool: u64,
    /// Bytes of slots that it may hold.
    pub bound: u64,
    /// Descriptors in each ring of its channels, unless `peer` says otherwise.
    pub capacity: u32,
    /// How descriptors go.
    #[serde(default, skip_serializing_if = "Mode::is_ring")]
    pub delivery: Mode,
    /// Who can write where.
    #[serde(default, skip_serializing_if = "Isolation::is_shared")]
    pub isolation: Isolation,
    /// In a strict domain: size and count of each class of the party's own pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub classes: Vec<[u32; 2]>,
}

/// A strict party's own pool. Descriptor: its region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnPool {
    /// Bytes of the region.
    pub bytes: u64,
}

/// An edge. Descriptors: channel, the peer's pool (in a strict domain), its desk, its event (if it has one).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// The channel's number: never given twice in a domain.
    pub channel: u32,
    /// What the receiver of this message is.
    pub side: Role,
    /// The peer's number.
    pub party: u16,
    /// The peer's function; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<FunctionId>,
    /// The peer's instance; none for the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<InstanceId>,
    /// Descriptors in each ring.
    pub capacity: u32,
    /// Bytes of the peer's pool, in a strict domain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<u64>,
    /// What the edge is good for.
    #[serde(flatten)]
    pub terms: Terms,
}

/// What an edge is good for, beside calling the callee by its own name. All of it may be left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// Other names by which the caller calls the callee.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<FunctionId>,
    /// Filters of the topics whose events the callee wants from the caller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// Events alone may be sent: a call breaks the channel.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub events_only: bool,
}

/// A channel comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gone {
    /// Which.
    pub channel: u32,
    /// How.
    pub state: End,
}

/// The answer to [`Gone`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drained {
    /// Which.
    pub channel: u32,
}

/// A channel is of no use: one of its ends broke the rules, or could not map what it was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Broken {
    /// Which.
    pub channel: u32,
}

/// There should be a channel to a function, and cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Whom the party would call.
    pub function: FunctionId,
    /// What the node has too little of.
    pub lacks: Lack,
}

/// What a node can have too little of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lack {
    /// File descriptors: EMFILE, ENFILE.
    Descriptors,
    /// Memory: ENOMEM, ENOSPC.
    Memory,
    /// Something else; the node's log says what.
    #[serde(other)]
    Other,
}

impl Lack {
    /// By the error that making something ended with.
    pub fn of(error: &std::io::Error) -> Self {
        match error.raw_os_error().map(rustix::io::Errno::from_raw_os_error) {
            Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE) => Self::Descriptors,
            Some(rustix::io::Errno::NOMEM | rustix::io::Errno::NOSPC) => Self::Memory,
            _ => Self::Other,
        }
    }
}

impl std::fmt::Display for Lack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Descriptors => "the node has no file descriptor left: raise its limit (LimitNOFILE, ulimit -n)",
            Self::Memory => "the node has no memory left for it",
            Self::Other => "the node's log says why",
        })
    }
}

/// Why a party is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// For people.
    pub why: String,
}

/// From the party.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FromParty {
    /// See [`Hello`].
    Hello(Hello),
    /// It takes calls from now on.
    Ready {},
    /// See [`OwnPool`].
    Pool(OwnPool),
    /// See [`Drained`].
    Drained(Drained),
    /// See [`Broken`].
    Broken(Broken),
}

/// From the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FromNode {
    /// See [`Welcome`].
    Welcome(Welcome),
    /// See [`Refused`].
    Refused(Refused),
    /// See [`Peer`].
    Peer(Peer),
    /// See [`Gone`].
    Gone(Gone),
    /// See [`Failed`].
    Failed(Failed),
}

/// Why a packet is no message; its sender is at fault.
#[derive(Debug, thiserror::Error)]
pub enum BadMessage {
    /// Not JSON, or a member of another type.
    #[error("the packet is not a message of the dispatch protocol: {0}")]
    Json(#[from] serde_json::Error),
    /// Two messages at once.
    #[error("the packet holds more than one message")]
    Several,
}

impl FromParty {
    /// Reads one. `None` is a message that this version does not know.
    pub fn read(packet: &[u8]) -> Result<Option<Self>, BadMessage> {
        #[derive(Deserialize)]
        struct Known {
            hello: Option<Hello>,
            ready: Option<serde::de::IgnoredAny>,
            pool: Option<OwnPool>,
            drained: Option<Drained>,
            broken: Option<Broken>,
        }
        let Known { hello, ready, pool, drained, broken } = serde_json::from_slice(packet)?;
        only([
            hello.map(Self::Hello),
            ready.map(|_| Self::Ready {}),
            pool.map(Self::Pool),
            drained.map(Self::Drained),
            broken.map(Self::Broken),
        ])
    }
}

impl FromNode {
    /// Reads one. `None` is a message that this version does not know.
    pub fn read(packet: &[u8]) -> Result<Option<Self>, BadMessage> {
        #[derive(Deserialize)]
        struct Known {
            welcome: Option<Welcome>,
            refused: Option<Refused>,
            peer: Option<Peer>,
            gone: Option<Gone>,
            failed: Option<Failed>,
        }
        let Known { welcome, refused, peer, gone, failed } = serde_json::from_slice(packet)?;
        only([
            welcome.map(Self::Welcome),
            refused.map(Self::Refused),
            peer.map(Self::Peer),
            gone.map(Self::Gone),
            failed.map(Self::Failed),
        ])
    }
}

fn only<T, const N: usize>(found: [Option<T>; N]) -> Result<Option<T>, BadMessage> {
    let mut found = found.into_iter().flatten();
    let first = found.next();
    if found.next().is_some() { Err(BadMessage::Several) } else { Ok(first) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn function() -> impl Strategy<Value = Option<FunctionId>> {
        proptest::option::of("[a-z][a-z0-9]{0,62}".prop_map(|name| name.parse().unwrap()))
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::Ring), Just(Mode::Sockmap), Just(Mode::Poll)]
    }

    fn isolation() -> impl Strategy<Value = Isolation> {
        prop_oneof![Just(Isolation::Shared), Just(Isolation::Strict)]
    }

    fn classes() -> impl Strategy<Value = Vec<[u32; 2]>> {
        proptest::collection::vec(any::<[u32; 2]>(), 0..=15)
    }

    fn terms() -> impl Strategy<Value = Terms> {
        let aliases = proptest::collection::vec(function().prop_filter_map("a name", |name| name), 0..3);
        let topics = proptest::collection::vec("[a-z+/#]{1,20}", 0..3);
        (aliases, topics, any::<bool>()).prop_map(|(aliases, topics, events_only)| Terms {
            aliases,
            topics,
            events_only,
        })
    }

    fn from_node() -> impl Strategy<Value = FromNode> {
        let instance = || proptest::option::of(any::<u64>().prop_map(InstanceId));
        let end = || prop_oneof![Just(End::Withdrawn), Just(End::Dead)];
        let role = prop_oneof![Just(Role::Caller), Just(Role::Callee)];
        prop_oneof![
            (
                ".{0,80}",
                any::<u16>(),
                function(),
                instance(),
                any::<(u64, u64, u32)>(),
                (mode(), isolation(), classes())
            )
                .prop_map(
                    |(domain, party, function, instance, (pool, bound, capacity), (delivery, isolation, classes))| {
                        FromNode::Welcome(Welcome {
                            domain,
                            party,
                            function,
                            instance,
                            pool,
                            bound,
                            capacity,
                            delivery,
                            isolation,
                            classes,
                        })
                    }
                ),
            (any::<(u32, u16, u32, Option<u64>)>(), role, function(), instance(), terms()).prop_map(
                |((channel, party, capacity, pool), side, function, instance, terms)| {
                    FromNode::Peer(Peer { channel, side, party, function, instance, capacity, pool, terms })
                }
            ),
            (any::<u32>(), end()).prop_map(|(channel, state)| FromNode::Gone(Gone { channel, state })),
            ".{0,200}".prop_map(|why| FromNode::Refused(Refused { why })),
        ]
    }

    fn several<T: Strategy>(one: T) -> impl Strategy<Value = Vec<T::Value>> {
        proptest::collection::vec(one, 0..4)
    }

    fn from_party() -> impl Strategy<Value = FromParty> {
        let bell = prop_oneof![Just(Bell::Futex), Just(Bell::Eventfd), Just(Bell::None)];
        prop_oneof![
            (any::<u32>(), any::<[bool; 2]>(), bell, several(mode()), several(isolation())).prop_map(
                |(version, [serves, stands_in], bell, delivery, isolation)| {
                    FromParty::Hello(Hello { version, serves, stands_in, bell, delivery, isolation })
                }
            ),
            Just(FromParty::Ready {}),
            any::<u64>().prop_map(|bytes| FromParty::Pool(OwnPool { bytes })),
            any::<u32>().prop_map(|channel| FromParty::Drained(Drained { channel })),
        ]
    }

    proptest! {
        #[test]
        fn written_and_read(node in from_node(), party in from_party()) {
            let bytes = serde_json::to_vec(&node).unwrap();
            prop_assert!(bytes.len() <= MAX_PACKET);
            prop_assert_eq!(FromNode::read(&bytes).unwrap(), Some(node));
            let bytes = serde_json::to_vec(&party).unwrap();
            prop_assert_eq!(FromParty::read(&bytes).unwrap(), Some(party));
        }

        #[test]
        fn any_bytes_do_no_harm(bytes: Vec<u8>) {
            let _ = (FromNode::read(&bytes), FromParty::read(&bytes));
        }
    }

    #[test]
    fn as_the_contract_writes_them() {
        let hello = br#"{"hello":{"version":1,"serves":true,"bell":"eventfd","new":[1]}}"#;
        let expected = FromParty::Hello(Hello {
            version: 1,
            serves: true,
            stands_in: false,
            bell: Bell::Eventfd,
            delivery: vec![],
            isolation: vec![],
        });
        assert_eq!(FromParty::read(hello).unwrap(), Some(expected));
        let hello = br#"{"hello":{"version":1,"bell":"none","delivery":["ring","sockmap","pigeon"],"isolation":["strict","x"]}}"#;
        let delivery = vec![Mode::Ring, Mode::Sockmap, Mode::Unknown];
        let isolation = vec![Isolation::Strict, Isolation::Unknown];
        let hello_in_full =
            Hello { version: 1, serves: false, stands_in: false, bell: Bell::None, delivery, isolation };
        let expected = FromParty::Hello(hello_in_full);
        assert_eq!(FromParty::read(hello).unwrap(), Some(expected));
        assert_eq!(FromParty::read(br#"{"ready":{}}"#).unwrap(), Some(FromParty::Ready {}));
        assert_eq!(serde_json::to_string(&FromParty::Ready {}).unwrap(), r#"{"ready":{}}"#);
        let pool = FromParty::read(br#"{"pool":{"bytes":4096}}"#).unwrap();
        assert_eq!(pool, Some(FromParty::Pool(OwnPool { bytes: 4096 })));
        let gone = FromNode::read(br#"{"gone":{"channel":12,"state":"withdrawn"}}"#).unwrap();
        assert_eq!(gone, Some(FromNode::Gone(Gone { channel: 12, state: End::Withdrawn })));
    }

    #[test]
    fn what_is_not_known_is_passed_over() {
        assert_eq!(FromNode::read(br#"{"weather":{"rain":true}}"#).unwrap(), None);
        assert!(FromNode::read(br#"{"gone":{"channel":1,"state":"dead"},"refused":{"why":""}}"#).is_err());
        assert!(FromParty::read(b"GET / HTTP/1.1\r\n\r\n").is_err());
        assert!(FromParty::read(br#"{"drained":{"channel":-1}}"#).is_err());
    }
}
