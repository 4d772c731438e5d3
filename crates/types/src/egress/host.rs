//! Address of a destination: `HOST:PORT`.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::fault::EgressFault;

/// Host as it was declared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EgressHost {
    /// A name, in lower case, without a dot at its end.
    Name(String),
    /// Every name below this one: `*.example.com` is `example.com` here.
    Below(String),
    /// An IPv4 address.
    V4(Ipv4Addr),
    /// An IPv6 address.
    V6(Ipv6Addr),
}

impl fmt::Display for EgressHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Below(name) => write!(f, "*.{name}"),
            Self::V4(address) => write!(f, "{address}"),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Parses `HOST:PORT`: a name (`*.` before it stands for one label or more), an IPv4 address or an
/// IPv6 address in brackets.
pub(super) fn parse_host_port(text: &str) -> Result<(EgressHost, u16), EgressFault> {
    let form = EgressFault::InvalidAddress("write HOST:PORT, for example `db.example.com:5432`");
    let (host, port) = text.rsplit_once(':').ok_or(form)?;
    // `parse` alone would accept a sign.
    let digits = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    match port.parse() {
        Ok(port) if digits && port != 0 => Ok((self::parse_host(host)?, port)),
        _ => Err(EgressFault::InvalidAddress(
            "the port is a number from 1 to 65535",
        )),
    }
}

fn parse_host(text: &str) -> Result<EgressHost, EgressFault> {
    if let Some(inner) = text
        .strip_prefix('[')
        .and_then(|text| text.strip_suffix(']'))
    {
        let address = inner.parse().map(EgressHost::V6);
        return address.map_err(|_| {
            EgressFault::InvalidAddress("what is in the brackets is not an IPv6 address")
        });
    }
    // Before names, because an IPv4 address has only characters of names.
    if let Ok(address) = text.parse() {
        return Ok(EgressHost::V4(address));
    }
    match text.strip_prefix("*.") {
        Some(name) => parse_name(name).map(EgressHost::Below),
        None => parse_name(text).map(EgressHost::Name),
    }
}

/// Parses a host's name (RFC 1123, and `_` as names in the wild have it). One that ends in a number
/// is refused: resolvers read it as an address, `127.1` as 127.0.0.1 (inet_aton(3)).
fn parse_name(text: &str) -> Result<String, EgressFault> {
    // Names compare without case, and a final dot only marks the root (RFC 1034 section 3.1).
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let dashed = |label: &str| label.starts_with('-') || label.ends_with('-');
    let label = |label: &str| {
        (1..=63).contains(&label.len()) && label.bytes().all(allowed) && !dashed(label)
    };
    // Limits of the wire format (RFC 1035 section 2.3.4).
    if name.len() > 253 || !name.split('.').all(label) {
        return Err(EgressFault::InvalidAddress(
            "the host is a name, an IPv4 address or an IPv6 address in brackets",
        ));
    }
    // Hexadecimal numbers are addresses for inet_aton(3), too.
    let last = name.rsplit('.').next().unwrap_or_default();
    let hex = last
        .strip_prefix("0x")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
    match hex || last.bytes().all(|byte| byte.is_ascii_digit()) {
        true => Err(EgressFault::InvalidAddress(
            "an IPv4 address has four numbers from 0 to 255, and a name does not end in a number",
        )),
        false => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_one_form() {
        for good in [
            "db:5432",
            "db.example.com:1",
            "*.example.com:443",
            "10.0.0.1:80",
            "[::1]:80",
            "a_b.x-y:9",
        ] {
            let (host, port) = parse_host_port(good).unwrap();
            assert_eq!(format!("{host}:{port}"), good);
        }
        let (host, _) = parse_host_port("DB.Example.COM.:1").unwrap();
        assert_eq!(
            host,
            EgressHost::Name("db.example.com".into()),
            "one name has one form"
        );
        for bad in [
            "",
            "db",
            "db:",
            "db:0",
            "db:65536",
            "db:+1",
            ":80",
            "a b:80",
            "::1:80",
            "[x]:80",
            "-a:80",
            "a-:80",
            "http://x:80",
            "a,b:80",
            "127.1:80",
            "10.0.0.256:80",
            "a.0x7f:80",
            "2130706433:80",
            "*.1:80",
            "*:80",
            "..:1",
        ] {
            assert!(parse_host_port(bad).is_err(), "{bad}");
        }
    }
}
