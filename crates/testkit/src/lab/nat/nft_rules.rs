//! Rules of one router, as text for `nft`.
//!
//! Linux itself is a port-restricted NAT: it keeps the source port where it can, keeps the mapping
//! as long as a flow of the source exists, and its connection tracking accepts responses only. The
//! other kinds need maps of their own: `mapped` holds the owner of an outside port, `written` the
//! contacted destinations. Packets that were just translated fill both; the first packet of an
//! inbound flow is looked up in them.

use std::fmt::Write;
use std::net::Ipv4Addr;

use super::kind::{IpFamily, LabFiltering, LabMapping, NatKind, NatPlan};

/// Device of every router towards the internet.
pub(super) const WAN_DEVICE: &str = "wan";
/// Idle seconds after which an outside TCP port is free again (RFC 5382, REQ-5: at least 2 h 4
/// min).
const TCP_LIFETIME_SECONDS: u64 = 124 * 60;

/// Rules of a router with this outside address; empty if it only routes.
pub(super) fn router_rules(plan: &NatPlan, outside: Ipv4Addr) -> String {
    match plan.kind {
        NatKind::None => return String::new(),
        NatKind::Masquerade => return masquerade_rules(),
        _ => (),
    }
    let translation = if translates(plan) {
        nat_rules(plan, outside)
    } else {
        String::new()
    };
    translation + &filter_rules(plan, outside)
}

/// Rules that translate sources, and neither filter nor remember anything.
fn masquerade_rules() -> String {
    format!(
        r#"
table ip nat {{
  chain leave {{
    type nat hook postrouting priority srcnat;
    oifname "{WAN_DEVICE}" masquerade
  }}
}}
"#
    )
}

/// Commands that flush the state of the rules.
pub(super) fn flush_rules(plan: &NatPlan) -> &'static str {
    if translates(plan) && plan.kind != NatKind::Masquerade {
        "flush map ip nat mapped\nflush set ip nat written\n"
    } else {
        ""
    }
}

pub(super) fn translates(plan: &NatPlan) -> bool {
    plan.kind
        .mapping_of(IpFamily::V4)
        .is_some_and(|mapping| mapping != LabMapping::Unchanged)
}

/// Rules that forward a TCP port of the router to a machine.
pub(super) fn port_forward_rules(port: u16, machine: Ipv4Addr) -> String {
    format!(
        r#"
table ip opened {{
  chain enter {{
    type nat hook prerouting priority dstnat - 5;
    iifname "{WAN_DEVICE}" tcp dport {port} dnat to {machine}:{port}
  }}
}}
"#
    )
}

/// Rules for packets that are forwarded, and for packets to the router itself.
///
/// Refused packets must not leave a flow: it would take the port from the machine that contacts
/// their sender next. Packets that are dropped before the end of `input` or `forward` leave none.
fn filter_rules(plan: &NatPlan, outside: Ipv4Addr) -> String {
    let udp = if plan.kind.passes_udp() {
        ""
    } else {
        "meta l4proto udp drop"
    };
    let refuse = if plan.refuses_packets {
        "meta l4proto tcp reject with tcp reset\n reject"
    } else {
        "drop"
    };
    format!(
        r#"
table inet wall {{
  chain through {{
    type filter hook forward priority filter; policy accept;
    {udp}
    ct state invalid drop
    ct state established,related accept
    iifname != "{WAN_DEVICE}" accept
    ct status dnat accept
    {refuse}
  }}
  chain own {{
    type filter hook input priority filter; policy accept;
    ct state established,related accept
    iifname "{WAN_DEVICE}" {refuse}
    ip daddr {outside} drop
  }}
}}
"#
    )
}

/// Rules for source translation, and for inbound packets that connection tracking alone would
/// refuse.
fn nat_rules(plan: &NatPlan, outside: Ipv4Addr) -> String {
    let random = match plan.kind.mapping_of(IpFamily::V4) {
        Some(LabMapping::AddressAndPortDependent) => " fully-random",
        _ => "",
    };
    format!(
        r#"
table ip nat {{
  map mapped {{
    type inet_proto . inet_service : ipv4_addr . inet_service
    flags dynamic,timeout
    size 65535
  }}
  set written {{
    type inet_proto . ipv4_addr . inet_service
    flags dynamic,timeout
    size 65535
  }}
  chain leave {{
    type nat hook postrouting priority srcnat;
    oifname "{WAN_DEVICE}" snat to {outside}{random}
    meta mark 1 snat to {outside}{random}
  }}
  chain enter {{
    type nat hook prerouting priority dstnat;
    {}
  }}
  chain learn {{
    type filter hook postrouting priority srcnat + 10;
    oifname "{WAN_DEVICE}" jump note
    ct status snat ct status dnat jump note
  }}
  chain note {{
    {}
  }}
}}
"#,
        inbound_rules(plan, outside),
        learn_rules(plan)
    )
}

/// Rules that accept packets unknown to connection tracking. The mark translates the source of
/// packets that return into the site.
fn inbound_rules(plan: &NatPlan, outside: Ipv4Addr) -> String {
    let owner = "dnat ip to meta l4proto . th dport map @mapped";
    let from_outside = match plan.kind.filtering_of(IpFamily::V4) {
        Some(LabFiltering::EndpointIndependent) => format!("iifname \"{WAN_DEVICE}\" {owner}\n"),
        Some(LabFiltering::AddressDependent) => {
            format!(
                "iifname \"{WAN_DEVICE}\" meta l4proto . ip saddr . th dport @written {owner}\n"
            )
        }
        _ => String::new(),
    };
    let back = format!("iifname != \"{WAN_DEVICE}\" ip daddr {outside} meta mark set 1 {owner}\n");
    from_outside + if plan.hairpin { &back } else { "" }
}

/// Rules that record the owner of an outside port: the source of the flow's first packet, or of the
/// responses to it.
fn learn_rules(plan: &NatPlan) -> String {
    let mut notes = String::new();
    if !plan.hairpin
        && plan.kind.filtering_of(IpFamily::V4) == Some(LabFiltering::AddressAndPortDependent)
    {
        return notes; // without hairpin, such a router needs no memory of its own
    }
    for (protocol, seconds) in [
        ("udp", plan.lifetime.as_secs()),
        ("tcp", TCP_LIFETIME_SECONDS),
    ] {
        for way in ["original", "reply"] {
            let owner = format!("ct {way} ip saddr . ct {way} proto-src");
            let key = format!("meta l4proto . th sport timeout {seconds}s");
            let _ = writeln!(
                notes,
                "meta l4proto {protocol} ct direction {way} update @mapped {{ {key} : {owner} }}"
            );
        }
        let key = format!("meta l4proto . ip daddr . th sport timeout {seconds}s");
        let _ = writeln!(notes, "meta l4proto {protocol} update @written {{ {key} }}");
    }
    notes
}
