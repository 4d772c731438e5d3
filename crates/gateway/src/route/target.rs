//! What a path asks for: one pure function over its text.

/// Longest `NAME.NAMESPACE`: two RFC 1035 labels and the dot between.
const MAX_NAME: usize = 63 + 1 + 63;

/// What a request's path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target<'a> {
    /// `/function/NAME[.NAMESPACE][/PATH]`; the function's own path begins at `rest` and may be empty.
    Function {
        /// As written, with or without a namespace.
        name: &'a str,
        /// Index into the path.
        rest: usize,
    },
    /// `/healthz`.
    Health,
    /// The administrator's side: `/system/…`, `/ui…`, `/`, `/async-function/…`.
    Admin,
    /// Nothing is there.
    Nowhere,
}

/// The path names a function that cannot exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a function's name is made of letters, digits, '-', '_' and '.', at most {MAX_NAME} of them")]
pub struct BadName;

/// Reads a request's path. No percent-decoding: a name never needs it, and what follows is the function's own matter.
///
/// # Errors
/// When the function's name is empty, too long or holds another character.
pub fn parse(path: &str) -> Result<Target<'_>, BadName> {
    const FUNCTION: &str = "/function/";
    if let Some(after) = path.strip_prefix(FUNCTION) {
        let end = after.find('/').unwrap_or(after.len());
        let name = &after[..end];
        return match is_name(name) {
            true => Ok(Target::Function { name, rest: FUNCTION.len() + end }),
            false => Err(BadName),
        };
    }
    Ok(match path {
        "/healthz" => Target::Health,
        "/" | "/ui" => Target::Admin,
        _ if ["/system/", "/ui/", "/async-function/"].iter().any(|admin| path.starts_with(admin)) => Target::Admin,
        _ => Target::Nowhere,
    })
}

fn is_name(text: &str) -> bool {
    let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_form_of_a_functions_path() {
        for (path, name, rest) in [
            ("/function/echo", "echo", ""),
            ("/function/echo/", "echo", "/"),
            ("/function/echo.dev/a/b", "echo.dev", "/a/b"),
            ("/function/echo//a", "echo", "//a"),
            ("/function/echo/../x%2f", "echo", "/../x%2f"),
        ] {
            let Ok(Target::Function { name: found, rest: at }) = parse(path) else { panic!("{path}") };
            assert_eq!((found, &path[at..]), (name, rest), "{path}");
        }
    }

    #[test]
    fn other_places() {
        for (path, target) in [
            ("/healthz", Target::Health),
            ("/", Target::Admin),
            ("/ui/", Target::Admin),
            ("/system/functions", Target::Admin),
            ("/async-function/echo", Target::Admin),
            ("/function", Target::Nowhere),
            ("/systemx", Target::Nowhere),
            ("/healthz/", Target::Nowhere),
            ("", Target::Nowhere),
            ("*", Target::Nowhere),
        ] {
            assert_eq!(parse(path), Ok(target), "{path}");
        }
        for path in ["/function/", "/function//x", "/function/%65cho", "/function/a b", "/function/ä"] {
            assert_eq!(parse(path), Err(BadName), "{path}");
        }
        assert_eq!(parse(&format!("/function/{}", "x".repeat(128))), Err(BadName));
    }

    proptest! {
        #[test]
        fn any_text_is_answered(path in "(/function/)?.{0,60}") {
            if let Ok(Target::Function { name, rest }) = parse(&path) {
                prop_assert_eq!(format!("/function/{name}{}", &path[rest..]), path.clone());
            }
        }
    }
}
