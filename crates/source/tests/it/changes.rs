//! Changes of the files, and the states that they lead to.

use nearpath_controller::SecretId;
use nearpath_types::FunctionId;

use crate::fixture::{SourceFixture, stack, write_file};

fn names<'a>(all: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    all.into_iter().map(String::as_str).collect()
}

#[tokio::test]
async fn a_folder_becomes_functions_nodes_and_secrets() {
    let two = ", nodes: [b], secrets: [other], namespace: dev";
    let text = stack(&[("one", ", secrets: [key]"), ("two", two)]);
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &text)]).await;
    fixture
        .until_fault("function one.openfaas-fn needs secret key")
        .await;
    fixture.write("secrets/key", "content");
    let applied = fixture.until_applied(|all| all.len() == 2).await;
    assert_eq!(names(applied.keys()), ["one.openfaas-fn", "two.dev"]);
    let model = fixture.controller.model();
    let secrets: Vec<_> = model.secrets.keys().map(SecretId::to_string).collect();
    assert_eq!(
        secrets,
        ["openfaas-fn/key"],
        "the other one belongs to node b"
    );
    let nodes = fixture.handle().watch_nodes().borrow().clone();
    let addresses = nodes.values().collect::<Vec<_>>();
    assert_eq!(addresses, ["10.0.0.1:9000", "host.example:8444"]);
    let one = &model.functions[&"one".parse::<FunctionId>().unwrap()];
    let wanted = format!("file://{}/one", fixture.folder.display());
    assert_eq!(one.spec.image, wanted);
}

#[tokio::test]
async fn stack_files_come_and_go() {
    let fixture = SourceFixture::with_stacks(&[("one.yml", &stack(&[("one", "")]))]).await;
    fixture.until_applied(|all| all.len() == 1).await;
    fixture.write("two.yaml", &stack(&[("two", "")]));
    fixture.write(".two.yml.swp", "{{{");
    let applied = fixture.until_applied(|all| all.len() == 2).await;
    assert_eq!(applied["one.openfaas-fn"], 1, "it is unchanged");
    fixture.remove("one.yml");
    let applied = fixture.until_applied(|all| all.len() == 1).await;
    assert_eq!(names(applied.keys()), ["two.openfaas-fn"]);
    fixture.remove("two.yaml");
    fixture.until_applied(|all| all.is_empty()).await;
}

#[tokio::test]
async fn a_handler_that_changes_gets_a_new_revision() {
    let text = stack(&[("one", ""), ("two", "")]);
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &text)]).await;
    let before = fixture.until_applied(|all| all.len() == 2).await;
    fixture.write("one/lib/new.py", "x = 1");
    let after = fixture
        .until_applied(|all| all["one.openfaas-fn"] > before["one.openfaas-fn"])
        .await;
    assert_eq!(after["two.openfaas-fn"], before["two.openfaas-fn"]);
}

#[tokio::test]
async fn an_equal_copy_of_a_file_changes_no_revision() {
    let text = stack(&[("one", ""), ("two", "")]);
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &text)]).await;
    let before = fixture.until_applied(|all| all.len() == 2).await;
    fixture.remove("one/main.py");
    fixture.write("one/main.py", "print(1)");
    fixture.write("stack.yml", &text);
    fixture.write("two/main.py", "print(22)"); // the sign that the folder was read
    let after = fixture
        .until_applied(|all| all["two.openfaas-fn"] > before["two.openfaas-fn"])
        .await;
    assert_eq!(after["one.openfaas-fn"], before["one.openfaas-fn"]);
}

#[tokio::test]
async fn a_secret_that_changes_restarts_its_functions() {
    let text = stack(&[("one", ", secrets: [key]"), ("two", "")]);
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &text)]).await;
    fixture.write("secrets/openfaas-fn/key", "old");
    let before = fixture.until_applied(|all| all.len() == 2).await;
    fixture.write("secrets/openfaas-fn/key", "another");
    let after = fixture
        .until_applied(|all| all["one.openfaas-fn"] > before["one.openfaas-fn"])
        .await;
    assert_eq!(after["two.openfaas-fn"], before["two.openfaas-fn"]);
}

#[tokio::test]
async fn an_address_that_changes_reaches_readers_of_the_nodes() {
    let fixture = SourceFixture::with_stacks(&[("stack.yml", &stack(&[("one", "")]))]).await;
    fixture.until_applied(|all| all.len() == 1).await;
    let mut nodes = fixture.handle().watch_nodes();
    fixture.write("nodes.yml", "nodes:\n  a: {address: 10.0.0.9:1}\n");
    let changed = nearpath_testkit::within(nodes.wait_for(|nodes| nodes.len() == 1));
    assert_eq!(changed.await.unwrap()["a"], "10.0.0.9:1");
}

#[tokio::test]
async fn a_file_of_variables_may_be_beside_stack_files() {
    let text = stack(&[("one", ", environment_file: [common.yml]")]);
    let files = [
        ("stack.yml", &*text),
        ("common.yml", "environment: {A: x}\n"),
    ];
    let fixture = SourceFixture::with_stacks(&files).await;
    let before = fixture.until_applied(|all| all.len() == 1).await;
    fixture.write("common.yml", "environment: {A: longer}\n");
    fixture.until_applied(|all| *all != before).await;
    let model = fixture.controller.model();
    let one = &model.functions[&"one".parse::<FunctionId>().unwrap()];
    assert_eq!(one.spec.env_vars["A"], "longer");
}

#[tokio::test]
async fn a_link_to_an_equal_folder_changes_no_revision() {
    let text = stack(&[("one", "")]);
    let mut fixture = SourceFixture::with_stacks(&[]).await;
    fixture.until_applied(|all| all.is_empty()).await;
    let parent = fixture.folder.parent().unwrap().to_owned();
    let release = |number: u32, main: &str| {
        let release = parent.join(format!("release-{number}"));
        write_file(&release.join("one/main.py"), main);
        write_file(&release.join("stack.yml"), &text);
        write_file(&release.join("nodes.yml"), "nodes: {a: {address: x}}\n");
        let next = parent.join("next");
        std::os::unix::fs::symlink(&release, &next).unwrap();
        std::fs::rename(next, parent.join("current")).unwrap();
        format!("file://{}/one", release.display())
    };
    release(1, "print(1)");
    fixture.folder = parent.join("current");
    let fixture = fixture.restart().await;
    let before = fixture.until_applied(|all| all.len() == 1).await;
    let image = release(2, "print(1)");
    let id: FunctionId = "one".parse().unwrap();
    let has_moved = || fixture.controller.model().functions[&id].spec.image == image;
    nearpath_testkit::eventually("the new path is in use", async || has_moved()).await;
    assert_eq!(fixture.revisions(), before);
    release(3, "print(3)");
    fixture.until_applied(|all| *all != before).await;
}
