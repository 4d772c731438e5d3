//! `contract/vectors/way.json`.

use nearpath_p2p::migrate::Word;
use nearpath_types::SpiffeId;
use nearpath_wire::pair::name_of;
use serde_json::Value;

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../../contract/vectors/way.json")).unwrap()
}

fn all(name: &str) -> Vec<Value> {
    vectors()[name].as_array().unwrap().clone()
}

#[test]
fn words() {
    for vector in all("words") {
        let at = vector["at"].as_u64().unwrap();
        let word = if vector["word"] == "moved" { Word::Moved { at } } else { Word::Ended { at } };
        let text = vector["text"].as_str().unwrap();
        assert_eq!((Word::decode(text), word.encode()), (Ok(word), text.to_owned()));
    }
    for text in all("refused") {
        assert!(Word::decode(text.as_str().unwrap()).is_err(), "{text}");
    }
}

#[test]
fn names() {
    for vector in all("names") {
        let id: SpiffeId = vector["identity"].as_str().unwrap().parse().unwrap();
        assert_eq!(name_of(&id), vector["name"].as_str().unwrap());
    }
}
