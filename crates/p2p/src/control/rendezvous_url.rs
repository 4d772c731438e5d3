//! Address of a rendezvous.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// `wss://HOST[:PORT]`, or `ws://` on a network without eavesdroppers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RendezvousUrl {
    /// True for TLS.
    pub tls: bool,
    /// Name or address; IPv6 without brackets.
    pub host: String,
    /// Port; by default 443 with TLS, 80 without.
    pub port: u16,
}

/// Text is no such address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid rendezvous {0:?}: expected wss://HOST[:PORT], or ws:// without TLS")]
pub struct InvalidRendezvousUrl(String);

impl FromStr for RendezvousUrl {
    type Err = InvalidRendezvousUrl;

    fn from_str(text: &str) -> Result<Self, InvalidRendezvousUrl> {
        // Bounded: the text may be anything, and the error is logged.
        let bad = || InvalidRendezvousUrl(text.chars().take(200).collect());
        let uri: Uri = text.parse().map_err(|_| bad())?;
        let tls = match uri.scheme_str() {
            Some("wss") => true,
            Some("ws") => false,
            _ => return Err(bad()),
        };
        // Credentials in the URL would be ignored silently, so they are refused.
        let authority = uri
            .authority()
            .filter(|authority| !authority.as_str().contains('@'))
            .ok_or_else(bad)?;
        let has_no_path = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let host = authority
            .host()
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        // `port_u16` does not tell a missing port from one that is out of range.
        let port = match authority.as_str().strip_prefix(authority.host()) {
            Some("") => Some(if tls { 443 } else { 80 }),
            _ => authority.port_u16(),
        };
        let port = port.ok_or_else(bad)?;
        if has_no_path && !host.is_empty() {
            Ok(Self { tls, host, port })
        } else {
            Err(bad())
        }
    }
}

impl RendezvousUrl {
    /// Returns host and port as in a request.
    pub(super) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for RendezvousUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}://{}",
            if self.tls { "wss" } else { "ws" },
            self.authority()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_parse_to_their_display_form() {
        for (text, shown) in [
            ("wss://meet.example", "wss://meet.example:443"),
            ("ws://127.0.0.1:7843/", "ws://127.0.0.1:7843"),
            ("wss://[2001:db8::1]:9", "wss://[2001:db8::1]:9"),
        ] {
            let url: RendezvousUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<RendezvousUrl>().unwrap(), url);
        }
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in [
            "",
            "meet.example",
            "https://a",
            "wss://",
            "wss://a/path",
            "ws://a?b",
            "wss://user@a",
            "ws://a:70000",
        ] {
            assert!(text.parse::<RendezvousUrl>().is_err(), "{text}");
        }
    }
}
