//! What can stand against a path.

use std::fmt;

macro_rules! obstacles {
    ($($variant:ident, $name:literal, $text:literal;)*) => {
        /// Why a path was not taken that would have been tried first.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Obstacle {
            $(#[doc = $text] $variant,)*
        }

        impl Obstacle {
            /// Every one.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Its name in records, metrics and headers.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

obstacles! {
    OtherNode, "other_node", "the instance is on another machine";
    NoDomain, "no_domain", "the function belongs to no chain (nearpath.io/chain), so it shares no memory";
    OtherDomain, "other_domain", "caller and callee belong to different chains";
    CallerNoParty, "caller_no_party", "the caller does not speak through shared memory: its calls go to the gateway over HTTP";
    NoParty, "no_party", "the instance does not take calls through shared memory";
    Upgrade, "upgrade", "an upgraded connection needs a connection of its own";
    Grpc, "grpc", "gRPC needs HTTP/2 up to the function";
    CallerNoIdentity, "caller_no_identity", "the caller has no certificate: its calls go to the gateway over HTTP";
    NoIdentity, "no_identity", "the instance was not told who it is, so it has no certificate; its log says why";
    UdpBlocked, "udp_blocked", "the instance did not answer over UDP lately; it is tried again from time to time";
    NoTls, "no_tls", "caller and instance speak no TLS over TCP";
    NoRoom, "no_room", "the channel or the pool had no room for the call at that moment";
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
