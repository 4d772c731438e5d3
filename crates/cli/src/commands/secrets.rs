//! Advice on missing secrets: there is no command to create them yet, so the API call is printed in
//! full.

use nearpath_types::FunctionSpec;
use serde_json::json;

use crate::api::ApiClient;

/// Returns a line of advice for each secret that the spec names and the gateway lacks.
pub(super) fn advice(client: &ApiClient, spec: &FunctionSpec) -> Vec<String> {
    let needed = spec.needed_secrets();
    if needed.is_empty() {
        return Vec::new();
    }
    // A gateway that does not list its secrets has explained its refusal already.
    let Ok(known) = client.secrets(&spec.namespace) else {
        return Vec::new();
    };
    let missing = needed.iter().filter(|name| !known.contains(name));
    missing
        .map(|name| {
            create_command(
                (client.base(), client.user()),
                spec.namespace.as_str(),
                name,
            )
        })
        .collect()
}

fn create_command((base, user): (&str, Option<&str>), namespace: &str, name: &str) -> String {
    let body =
        shell_quote(&json!({ "name": name, "namespace": namespace, "value": "VALUE" }).to_string());
    // Without a password after `-u USER`, curl asks for it: it does not end up in the shell's
    // history.
    let user = user
        .map(|user| format!(" -u {}", shell_quote(user)))
        .unwrap_or_default();
    format!("missing secret {name}: create it with curl{user} -d {body} {base}/system/secrets")
}

/// Quotes a text as one word of a shell's command line.
fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::create_command;

    #[test]
    fn the_command_can_be_pasted_into_a_shell() {
        assert_eq!(
            create_command(("http://h:1", Some("o'k")), "dev", "key"),
            r#"missing secret key: create it with curl -u 'o'\''k' -d '{"name":"key","namespace":"dev","value":"VALUE"}' http://h:1/system/secrets"#
        );
    }
}
