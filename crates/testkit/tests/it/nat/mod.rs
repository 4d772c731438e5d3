//! Behaviour of every kind of site, measured from outside by plain sockets: two addresses of the
//! rendezvous, two ports on each.
//!
//! Tests never wait for a packet not to come. Every link keeps the order of packets, so what has
//! not arrived when a later packet has will not arrive.

mod both;
mod end;
mod fixture;
mod hairpin;
mod sockets;
mod tcp;
mod udp;

/// Defines a test for every kind of site, in each family that the kind has.
macro_rules! for_each_kind {
    ($check:path) => {
        for_each_kind!($check;
            none: None V4, full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
            masquerade: Masquerade V4, symmetric: Symmetric V4, double_nat: Double V4, firewall: Firewall V4, udp_blocked: UdpBlocked V4,
            v6_only: V6Only V6, dual_stack_v4: DualStack V4, dual_stack_v6: DualStack V6);
    };
    ($check:path; $($name:ident: $kind:ident $family:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                nearpath_testkit::need_nat!();
                $check(nearpath_testkit::lab::nat::NatKind::$kind, nearpath_testkit::lab::nat::IpFamily::$family);
            }
        )*
    };
}
use for_each_kind;
