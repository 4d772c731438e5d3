//! Identifiers made of the contract's names.

/// Words that Go writes in capitals (initialisms).
const INITIALISMS: [&str; 5] = ["grpc", "http", "quic", "tls", "udp"];

/// `no_endpoint` → `NoEndpoint`.
pub(super) fn camel(name: &str) -> String {
    name.split('_').map(capitalized).collect()
}

/// `no_tls` → `NoTLS`.
pub(super) fn go_camel(name: &str) -> String {
    let word = |word: &str| {
        if INITIALISMS.contains(&word) {
            word.to_uppercase()
        } else {
            capitalized(word)
        }
    };
    name.split('_').map(word).collect()
}

/// `no_endpoint` → `NO_ENDPOINT`.
pub(super) fn upper(name: &str) -> String {
    name.to_uppercase()
}

fn capitalized(word: &str) -> String {
    // Names are ASCII, so one byte is one character; an empty word stays empty.
    let (first, rest) = word.split_at(word.len().min(1));
    first.to_uppercase() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_language_has_its_form() {
        assert_eq!(camel("no_tls"), "NoTls");
        assert_eq!(go_camel("no_tls"), "NoTLS");
        assert_eq!(go_camel("shm"), "Shm");
        assert_eq!(upper("no_tls"), "NO_TLS");
    }
}
