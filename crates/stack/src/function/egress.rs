//! Destinations outside: `HOST:PORT`.

use std::net::{IpAddr, Ipv6Addr};

/// Checks one destination: a host name (`*.` may stand for one label or more), an IPv4 address or an IPv6 address in
/// brackets, and a port.
pub(crate) fn check(text: &str) -> Result<(), &'static str> {
    let (host, port) = text.rsplit_once(':').ok_or("write HOST:PORT, for example `db.example.com:5432`")?;
    if port.parse::<u16>().map_or(true, |port| port == 0) {
        return Err("the port is a number from 1 to 65535");
    }
    if let Some(inner) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return inner.parse::<Ipv6Addr>().map(|_| ()).map_err(|_| "what is in the brackets is not an IPv6 address");
    }
    match host.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv4()) || is_host(host.strip_prefix("*.").unwrap_or(host)) {
        true => Ok(()),
        false => Err("the host is a name, an IPv4 address or an IPv6 address in brackets"),
    }
}

fn is_host(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    let label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(letter) && !label.starts_with('-');
    name.len() <= 253 && name.strip_suffix('.').unwrap_or(name).split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn destinations() {
        for good in ["db:5432", "db.example.com:1", "*.example.com:443", "10.0.0.1:80", "[::1]:80"] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in
            ["", "db", "db:", "db:0", "db:65536", ":80", "a b:80", "::1:80", "[x]:80", "-a:80", "http://x:80", "a,b:80"]
        {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
