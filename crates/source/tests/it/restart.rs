//! Restarts, with and without the folder.

use crate::fixture::{SourceFixture, stack};

#[tokio::test]
async fn a_restart_applies_what_changed_meanwhile() {
    let text = stack(&[("one", ""), ("two", "")]);
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &text)]).await;
    let before = fixture.until_applied(|all| all.len() == 2).await;
    let fixture = fixture.restart().await;
    assert_eq!(fixture.until_applied(|all| all.len() == 2).await, before);
    fixture.write("two/main.py", "print(22)");
    let fixture = fixture.restart().await;
    let after = fixture.until_applied(|all| *all != before).await;
    assert_eq!(after["one.openfaas-fn"], before["one.openfaas-fn"]);
}

#[tokio::test]
async fn a_restart_without_the_folder_keeps_functions_and_nodes() {
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &stack(&[("one", "")]))]).await;
    let before = fixture.until_applied(|all| all.len() == 1).await;
    std::fs::remove_dir_all(&fixture.folder).unwrap();
    let fixture = fixture.restart().await;
    assert_eq!(fixture.revisions(), before);
    assert_eq!(
        fixture.handle().watch_nodes().borrow()["b"],
        "host.example:8444"
    );
    fixture.until_fault("nodes.yml: cannot be read").await;
    let status = fixture.handle().watch_status().borrow().clone();
    assert_eq!((status.applied_at, status.revision.0), (None, 1));
    assert_eq!(fixture.revisions(), before);
}
