//! Targets of request paths: a pure function of the text.

/// Maximum length of `NAME.NAMESPACE`: two RFC 1035 labels and a dot.
const MAX_NAME_BYTES: usize = 63 + 1 + 63;

/// Target of a request path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathTarget<'a> {
    /// `/function/NAME[.NAMESPACE][/PATH]`; the function's own path begins at `path_offset` and
    /// may be empty.
    Function {
        /// Name as written, with or without a namespace.
        name: &'a str,
        /// Offset in the path.
        path_offset: usize,
    },
    /// `/healthz`.
    Health,
    /// Administrative paths: `/system/…`, `/ui…`, `/`, `/async-function/…`.
    Admin,
    /// Nothing is served there.
    Unknown,
}

/// A path with an invalid function name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid function name: expected at most {MAX_NAME_BYTES} letters, digits, '-', '_' or '.'"
)]
pub struct InvalidFunctionPath;

/// Parses a request path without percent-decoding: names never need it, and the rest belongs to
/// the function.
///
/// # Errors
/// If the function's name is too long or has an invalid character.
pub fn parse_path(path: &str) -> Result<PathTarget<'_>, InvalidFunctionPath> {
    const FUNCTION_PREFIX: &str = "/function/";
    if let Some(after) = path.strip_prefix(FUNCTION_PREFIX) {
        let end = after.find('/').unwrap_or(after.len());
        let name = &after[..end];
        return match is_name(name) {
            // No function has an empty name, so nothing is there: 404, as from OpenFaaS.
            _ if name.is_empty() => Ok(PathTarget::Unknown),
            true => Ok(PathTarget::Function {
                name,
                path_offset: FUNCTION_PREFIX.len() + end,
            }),
            false => Err(InvalidFunctionPath),
        };
    }
    Ok(match path {
        "/healthz" => PathTarget::Health,
        "/" | "/ui" => PathTarget::Admin,
        _ if ["/system/", "/ui/", "/async-function/"]
            .iter()
            .any(|admin| path.starts_with(admin)) =>
        {
            PathTarget::Admin
        }
        _ => PathTarget::Unknown,
    })
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.len() <= MAX_NAME_BYTES && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_a_function_path_is_parsed() {
        for (path, name, rest) in [
            ("/function/echo", "echo", ""),
            ("/function/echo/", "echo", "/"),
            ("/function/echo.dev/a/b", "echo.dev", "/a/b"),
            ("/function/echo//a", "echo", "//a"),
            ("/function/echo/../x%2f", "echo", "/../x%2f"),
        ] {
            let Ok(PathTarget::Function {
                name: found,
                path_offset: at,
            }) = parse_path(path)
            else {
                panic!("{path}")
            };
            assert_eq!((found, &path[at..]), (name, rest), "{path}");
        }
    }

    #[test]
    fn paths_outside_functions_are_admin_health_or_unknown() {
        for (path, target) in [
            ("/healthz", PathTarget::Health),
            ("/", PathTarget::Admin),
            ("/ui/", PathTarget::Admin),
            ("/system/functions", PathTarget::Admin),
            ("/async-function/echo", PathTarget::Admin),
            ("/function", PathTarget::Unknown),
            ("/function/", PathTarget::Unknown),
            ("/function//x", PathTarget::Unknown),
            ("/systemx", PathTarget::Unknown),
            ("/healthz/", PathTarget::Unknown),
            ("", PathTarget::Unknown),
            ("*", PathTarget::Unknown),
        ] {
            assert_eq!(parse_path(path), Ok(target), "{path}");
        }
        for path in ["/function/%65cho", "/function/a b", "/function/ä"] {
            assert_eq!(parse_path(path), Err(InvalidFunctionPath), "{path}");
        }
        assert_eq!(
            parse_path(&format!("/function/{}", "x".repeat(128))),
            Err(InvalidFunctionPath)
        );
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(path in "(/function/)?.{0,60}") {
            if let Ok(PathTarget::Function { name, path_offset }) = parse_path(&path) {
                prop_assert_eq!(format!("/function/{name}{}", &path[path_offset..]), path.clone());
            }
        }
    }
}
