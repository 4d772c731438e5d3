//! How to make the secrets that a refused function lacks: there is no command for it yet, so the call is told in full.

use nearpath_types::FunctionSpec;
use serde_json::json;

use crate::api::Client;

/// One line a secret that the spec names and the gateway does not have. A gateway that does not tell leaves it at its
/// refusal.
pub(super) fn advice(client: &Client, spec: &FunctionSpec) -> Vec<String> {
    let needed = spec.needed_secrets();
    if needed.is_empty() {
        return Vec::new();
    }
    let Ok(there) = client.secrets(&spec.namespace) else { return Vec::new() };
    let missing = needed.iter().filter(|name| !there.contains(name));
    missing.map(|name| how_to((client.base(), client.user()), spec.namespace.as_str(), name)).collect()
}

/// The password is left to curl to ask for.
fn how_to((base, user): (&str, Option<&str>), namespace: &str, name: &str) -> String {
    let body = quoted(&json!({ "name": name, "namespace": namespace, "value": "VALUE" }).to_string());
    let user = user.map(|user| format!(" -u {}", quoted(user))).unwrap_or_default();
    format!("create secret {name} first: curl{user} -d {body} {base}/system/secrets")
}

/// As one word of a shell's command line.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::how_to;

    #[test]
    fn the_line_can_be_pasted() {
        assert_eq!(
            how_to(("http://h:1", Some("o'k")), "dev", "key"),
            r#"create secret key first: curl -u 'o'\''k' -d '{"name":"key","namespace":"dev","value":"VALUE"}' http://h:1/system/secrets"#
        );
    }
}
