//! The path of a call over HTTP: the one that the answer reports, or else what stood against shared memory here.

use std::borrow::Cow;

use nearpath_path::{Obstacle, Path};

/// Asked with `?` in a request; the answer's value is `shm`, or `http; obstacle=no_endpoint`.
pub(crate) const FIELD: &str = "x-nearpath-path";

/// Returns what stands against shared memory: of a process in no domain nothing is known, of another whether its domain has the callee.
pub(crate) fn obstacle(knows: Option<bool>) -> Obstacle {
    match knows {
        None => Obstacle::CallerNoEndpoint,
        Some(false) => Obstacle::NoEndpoint,
        Some(true) => Obstacle::NoRoom, // or the callee is full, or stops
    }
}

/// The path that an answer reports, and what stood against the next nearer one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ReportedPath {
    pub(crate) path: Path,
    pub(crate) obstacle: Option<Cow<'static, str>>,
}

impl ReportedPath {
    /// Reads the answer's field. A gateway without it, such as OpenFaaS's, was called over HTTP because of `obstacle`; so was one of
    /// a later release, which reports a path without a name here.
    pub(crate) fn of(field: Option<&[u8]>, obstacle: Obstacle) -> Self {
        let plain = Self {
            path: Path::Http,
            obstacle: Some(Cow::Borrowed(obstacle.name())),
        };
        field
            .and_then(|field| std::str::from_utf8(field).ok())
            .and_then(Self::read)
            .unwrap_or(plain)
    }

    fn read(field: &str) -> Option<Self> {
        let mut words = field.split(';').map(str::trim);
        let path = Path::from_name(words.next()?)?;
        let obstacle = words
            .find_map(|word| word.strip_prefix("obstacle="))
            .map(|name| Cow::Owned(name.to_owned()));
        Some(Self { path, obstacle })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_reported(field: Option<&str>) -> (Path, Option<String>) {
        let ReportedPath { path, obstacle } =
            ReportedPath::of(field.map(str::as_bytes), Obstacle::NoEndpoint);
        (path, obstacle.map(Cow::into_owned))
    }

    #[test]
    fn what_the_answer_says_holds() {
        assert_eq!(parse_reported(Some("shm")), (Path::Shm, None));
        assert_eq!(
            parse_reported(Some("http; obstacle=no_domain")),
            (Path::Http, Some("no_domain".into()))
        );
        assert_eq!(
            parse_reported(Some("tls; obstacle=udp_blocked")),
            (Path::Tls, Some("udp_blocked".into()))
        );
        assert_eq!(
            parse_reported(Some("quic;obstacle=other_node")),
            (Path::Quic, Some("other_node".into()))
        );
    }

    /// Names of a later release: a path counts as HTTP, an obstacle is handed on.
    #[test]
    fn unknown_names_are_no_error() {
        assert_eq!(
            parse_reported(Some("pigeon; obstacle=fog")),
            (Path::Http, Some("no_endpoint".into()))
        );
        assert_eq!(
            parse_reported(Some("quic; obstacle=fog")),
            (Path::Quic, Some("fog".into()))
        );
        assert!(
            Path::ALL
                .iter()
                .all(|path| parse_reported(Some(path.name())) == (*path, None))
        );
    }

    #[test]
    fn one_that_says_nothing_was_called_over_http() {
        for field in [None, Some(""), Some("pigeon"), Some("?")] {
            assert_eq!(
                parse_reported(field),
                (Path::Http, Some("no_endpoint".into())),
                "{field:?}"
            );
        }
    }
}
