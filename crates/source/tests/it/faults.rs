//! Faulty files: the last good state stays, and the fault is named until it is gone.

use nearpath_types::FunctionId;

use crate::fixture::{SourceFixture, stack};

async fn one_function() -> SourceFixture {
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &stack(&[("one", "")]))]).await;
    fixture.until_applied(|all| all.len() == 1).await;
    fixture
}

#[tokio::test]
async fn a_faulty_file_leaves_the_last_good_state() {
    let fixture = one_function().await;
    let before = fixture.controller.model();
    fixture.write("two.yml", &stack(&[("two", ", nodes: [c]")]));
    fixture.write("one/main.py", "print(22)");
    let fault = fixture.until_fault("two.yml").await;
    let path = fixture.folder.join("two.yml");
    let wanted = format!("{}:2:", path.display());
    assert!(fault.starts_with(&wanted), "{fault}");
    assert!(
        fault.contains("names node `c`, which is not in the list"),
        "{fault}"
    );
    assert!(std::sync::Arc::ptr_eq(&before, &fixture.controller.model()));
    fixture.write("two.yml", &stack(&[("two", ", nodes: [b]")]));
    let applied = fixture.until_applied(|all| all.len() == 2).await;
    assert!(
        applied["one.openfaas-fn"] > 1,
        "the change beside the fault counts now"
    );
}

#[tokio::test]
async fn a_function_in_two_files_names_both() {
    let fixture = one_function().await;
    fixture.write("again.yml", &stack(&[("one", "")]));
    let fault = fixture.until_fault("function one.openfaas-fn is in").await;
    for name in ["again.yml", "stack.yml", "remove it from one of them"] {
        assert!(fault.contains(name), "{fault}");
    }
}

#[tokio::test]
async fn a_refusal_of_the_controller_is_a_fault() {
    let fixture = one_function().await;
    fixture.write("two.yml", "functions:\n  two: {image: docker.io/x}\n");
    let fault = fixture
        .until_fault("function two.openfaas-fn: image:")
        .await;
    assert!(
        fault.contains("images from a registry cannot be run yet"),
        "{fault}"
    );
    assert_eq!(fixture.revisions().len(), 1);
}

#[tokio::test]
async fn a_missing_folder_of_a_function_is_a_fault() {
    let fixture = one_function().await;
    fixture.write(
        "two.yml",
        "functions:\n  two: {image: file:///no/such, fprocess: x}\n",
    );
    fixture
        .until_fault("function two.openfaas-fn: its folder /no/such")
        .await;
    fixture.write(
        "two.yml",
        "functions:\n  two: {handler: ./three, fprocess: x}\n",
    );
    fixture.until_fault("two.yml:2:18: handler folder").await;
    fixture.write("three/main.py", "");
    fixture.until_applied(|all| all.len() == 2).await;
}

#[tokio::test]
async fn a_list_without_this_node_is_a_fault() {
    let fixture = one_function().await;
    fixture.write("nodes.yml", "nodes: {b: {address: x}}\n");
    let fault = fixture
        .until_fault("this node, a, is not in the list")
        .await;
    assert!(fault.contains("set its name with --name"), "{fault}");
    assert_eq!(fixture.handle().watch_nodes().borrow().len(), 2);
}

#[tokio::test]
async fn an_empty_folder_removes_nothing() {
    let fixture = one_function().await;
    let gone = fixture.folder.with_extension("gone");
    std::fs::rename(&fixture.folder, &gone).unwrap();
    fixture.until_fault("nodes.yml: cannot be read").await;
    std::fs::create_dir(&fixture.folder).unwrap();
    fixture.until_fault("nodes.yml: cannot be read").await;
    assert_eq!(fixture.revisions().len(), 1);
    std::fs::remove_dir(&fixture.folder).unwrap();
    std::fs::rename(&gone, &fixture.folder).unwrap();
    let applied = fixture.until_applied(|all| all.len() == 1).await;
    assert_eq!(applied["one.openfaas-fn"], 1, "nothing changed");
}

#[tokio::test]
async fn a_secret_never_reaches_a_fault() {
    let fixture = one_function().await;
    fixture.write("secrets/key", "hunter2");
    fixture.write(
        "stack.yml",
        &stack(&[("one", ", secrets: [key]"), ("two", ", secrets: [none]")]),
    );
    let fault = fixture.until_fault("needs secret none").await;
    assert!(!fault.contains("hunter2"), "{fault}");
    assert!(
        fixture.controller.model().secrets.is_empty(),
        "all or nothing"
    );
    let id: FunctionId = "one".parse().unwrap();
    assert!(
        fixture.controller.model().functions[&id]
            .spec
            .secrets
            .is_empty()
    );
}
