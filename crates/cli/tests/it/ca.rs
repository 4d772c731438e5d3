//! `nearpath ca`: from an authority to a node's folder, and a new root.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

use nearpath_wire::node_tls::NodeCredentials;
use serde_json::Value;

use crate::fake_gateway::{CliOutput, CliRun};

async fn ca(folder: &Path, args: &[&str]) -> CliOutput {
    let args: Vec<_> = ["ca"].iter().chain(args).copied().collect();
    CliRun::new(&args).current_dir(folder).output().await
}

async fn show(folder: &Path) -> Value {
    ca(folder, &["show", "--json"]).await.expect(0).json()
}

fn node_of(folder: &Path) -> String {
    let credentials = NodeCredentials::load(folder, SystemTime::now()).unwrap();
    format!("{} {}", credentials.id(), credentials.roots().len())
}

#[tokio::test]
async fn a_folder_for_each_node_is_ready_to_copy() {
    let folder = tempfile::tempdir().unwrap();
    let made = ca(folder.path(), &["init", "--trust-domain", "shop.example"]).await;
    let text = made.expect(0).out;
    assert!(
        text.contains("ca.key secret") && text.contains("nearpath ca issue"),
        "{text}"
    );
    let text = ca(folder.path(), &["issue", "east-1", "east-2"])
        .await
        .expect(0)
        .out;
    assert_eq!(text.lines().count(), 2, "{text}");
    let nodes = folder.path().join("nearpath-ca/nodes");
    for node in ["east-1", "east-2"] {
        let id = format!("spiffe://shop.example/node/{node}/gateway 1");
        assert_eq!(node_of(&nodes.join(node)), id);
    }
    let args = ["issue", "west", "--out", "out", "--days", "30", "--json"];
    let issued = ca(folder.path(), &args).await.expect(0).json();
    assert_eq!(
        (&issued[0]["node"], &issued[0]["folder"]),
        (&"west".into(), &"out/west".into())
    );
    assert!(issued[0]["notAfter"].as_str().unwrap().ends_with('Z'));
    node_of(&folder.path().join("out/west"));
}

#[tokio::test]
async fn a_root_is_rotated_and_retired() {
    let folder = tempfile::tempdir().unwrap();
    ca(folder.path(), &["init", "--json"]).await.expect(0);
    let before = show(folder.path()).await;
    assert_eq!(before["trustDomain"], "nearpath");
    let text = ca(folder.path(), &["rotate", "--days", "100"])
        .await
        .expect(0)
        .out;
    assert!(
        text.contains("2 roots") && text.contains("nearpath ca retire"),
        "{text}"
    );
    let both = show(folder.path()).await;
    assert_eq!(
        both["roots"][1]["fingerprint"],
        before["roots"][0]["fingerprint"]
    );
    assert_eq!(
        (&both["roots"][0]["signs"], &both["roots"][1]["signs"]),
        (&true.into(), &false.into())
    );
    let table = ca(folder.path(), &["show"]).await.expect(0).out;
    assert!(table.contains("accepted until retired"), "{table}");
    let text = ca(folder.path(), &["retire"]).await.expect(0).out;
    assert!(text.contains("Removed roots: 1"), "{text}");
    let after = show(folder.path()).await;
    assert_eq!(after["roots"].as_array().unwrap().len(), 1);
    assert_eq!(after["roots"][0], both["roots"][0]);
    let text = ca(folder.path(), &["retire"]).await.expect(0).out;
    assert!(text.contains("nothing was removed"), "{text}");
}

#[tokio::test]
async fn errors_name_the_file_and_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    for command in [
        &["issue", "a"] as &[&str],
        &["rotate"],
        &["retire"],
        &["show"],
    ] {
        let text = ca(folder.path(), command).await.expect(1).err;
        assert!(
            text.contains("./nearpath-ca does not exist") && text.contains("nearpath ca init"),
            "{text}"
        );
    }
    ca(folder.path(), &["init"]).await.expect(0);
    let key = folder.path().join("nearpath-ca/ca.key");
    let before = fs::read(&key).unwrap();
    let text = ca(folder.path(), &["init"]).await.expect(1).err;
    assert!(text.contains("ca.key exists"), "{text}");
    assert_eq!(fs::read(&key).unwrap(), before);
    let text = ca(folder.path(), &["issue", "a", "--days", "4000"])
        .await
        .expect(1)
        .err;
    assert!(text.contains("after the root"), "{text}");
    for usage in [
        &["issue"] as &[&str],
        &["issue", "A"],
        &["issue", "../a"],
        &["issue", "10.0.0.1"],
        &["issue", "a", "--days", "0"],
        &["init", "--dir", "new", "--trust-domain", "Shop"],
    ] {
        let ended = ca(folder.path(), usage).await.expect(2);
        assert!(!ended.err.is_empty() && ended.out.is_empty(), "{usage:?}");
    }
    assert!(!folder.path().join("new").exists());
}

#[tokio::test]
async fn help_has_examples_and_the_reference_page_every_option() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
    let page = fs::read_to_string(page).unwrap();
    for (command, options) in [
        ("init", vec!["--dir", "--trust-domain", "--days", "--json"]),
        ("issue", vec!["--dir", "--out", "--days", "--json"]),
        ("rotate", vec!["--dir", "--days", "--json"]),
        ("retire", vec!["--dir", "--json"]),
        ("show", vec!["--dir", "--json"]),
    ] {
        let help = ca(Path::new("/"), &[command, "--help"]).await.expect(0).out;
        assert!(
            help.contains(&format!("Example: nearpath ca {command}")),
            "{help}"
        );
        let start = page
            .find(&format!("## `nearpath ca {command}"))
            .expect(command);
        let section = page[start + 3..].split("\n## ").next().unwrap();
        for option in options {
            assert!(help.contains(option), "{command} {option}");
            assert!(section.contains(option), "{command} {option} in cli.md");
        }
    }
}
