//! Which way a call over HTTP took: what the answer tells, or else what stood against shared memory here.

use std::borrow::Cow;

use crate::message::Path;

/// Asked with `?` in a request; the answer's value is `shm`, or `http; not_nearer=no_party`.
pub(crate) const FIELD: &str = "x-nearpath-path";

/// The process is in no domain.
pub(crate) const CALLER_NO_PARTY: &str = "caller_no_party";
/// The callee is none of the domain's, or takes no calls there, or no edge to it is declared.
pub(crate) const NO_PARTY: &str = "no_party";
/// There was no room for the call at that moment, or the callee was full or stopping.
pub(crate) const NO_ROOM: &str = "no_room";

/// What stood against shared memory, for a process that is perhaps a party, which perhaps knows the callee.
pub(crate) fn obstacle(knows: Option<bool>) -> &'static str {
    match knows {
        None => CALLER_NO_PARTY,
        Some(false) => NO_PARTY,
        Some(true) => NO_ROOM,
    }
}

/// A path, and what stood against the next nearer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) path: Path,
    pub(crate) not_nearer: Option<Cow<'static, str>>,
}

impl Told {
    /// What the answer's field says. A gateway that does not know it, OpenFaaS's, was called over HTTP because of `obstacle`.
    pub(crate) fn of(field: Option<&[u8]>, obstacle: &'static str) -> Self {
        let plain = Self { path: Path::Http, not_nearer: Some(Cow::Borrowed(obstacle)) };
        field.and_then(|field| std::str::from_utf8(field).ok()).and_then(Self::read).unwrap_or(plain)
    }

    fn read(field: &str) -> Option<Self> {
        let mut words = field.split(';').map(str::trim);
        let path = Path::named(words.next()?)?;
        let not_nearer =
            words.find_map(|word| word.strip_prefix("not_nearer=")).map(|name| Cow::Owned(name.to_owned()));
        Some(Self { path, not_nearer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(field: Option<&str>) -> (Path, Option<String>) {
        let Told { path, not_nearer } = Told::of(field.map(str::as_bytes), NO_PARTY);
        (path, not_nearer.map(Cow::into_owned))
    }

    #[test]
    fn what_the_answer_says_holds() {
        assert_eq!(told(Some("shm")), (Path::Shm, None));
        assert_eq!(told(Some("http; not_nearer=no_domain")), (Path::Http, Some("no_domain".into())));
        assert_eq!(told(Some("tls; not_nearer=udp_blocked")), (Path::Tls, Some("udp_blocked".into())));
        assert_eq!(told(Some("quic;not_nearer=other_node")), (Path::Quic, Some("other_node".into())));
    }

    #[test]
    fn one_that_says_nothing_was_called_over_http() {
        for field in [None, Some(""), Some("pigeon"), Some("?")] {
            assert_eq!(told(field), (Path::Http, Some("no_party".into())), "{field:?}");
        }
    }
}
