//! `contract/vectors/migration.json`.

use nearpath_p2p::migrate::SwitchMessage;
use nearpath_types::SpiffeId;
use nearpath_wire::p2p_tls::worker_dns_name;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../contract/vectors/migration.json")).unwrap()
}

fn vector_list(name: &str) -> Vec<Value> {
    vectors()[name].as_array().unwrap().clone()
}

#[test]
fn switch_messages_match_the_contract() {
    for vector in vector_list("messages") {
        let at = vector["at"].as_u64().unwrap();
        let message = if vector["kind"] == "moved" {
            SwitchMessage::Moved { at }
        } else {
            SwitchMessage::Ended { at }
        };
        let text = vector["text"].as_str().unwrap();
        assert_eq!(
            (SwitchMessage::decode(text), message.encode()),
            (Ok(message), text.to_owned())
        );
    }
    for text in vector_list("refused") {
        assert!(
            SwitchMessage::decode(text.as_str().unwrap()).is_err(),
            "{text}"
        );
    }
}

#[test]
fn server_names_match_the_contract() {
    for vector in vector_list("names") {
        let id: SpiffeId = vector["identity"].as_str().unwrap().parse().unwrap();
        assert_eq!(worker_dns_name(&id), vector["name"].as_str().unwrap());
    }
}
