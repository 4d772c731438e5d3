use std::io::Write;

use nearpath_testkit::within;

use super::*;

fn function_id() -> FunctionId {
    "echo".parse().unwrap()
}

fn query_all(follow: bool) -> LogQuery {
    LogQuery {
        function: function_id(),
        instance: None,
        tail: None,
        since: None,
        follow,
    }
}

async fn collect_texts(mut from: mpsc::Receiver<LogLine>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(line) = from.recv().await {
        all.push(line.text);
    }
    all
}

#[tokio::test]
async fn a_follower_gets_every_line_once() {
    let logs = LogStore::new(LogBound::default());
    (0..100).for_each(|n| logs.push_line(&function_id(), InstanceId(1), n.to_string()));
    let reader = logs.read_lines(query_all(true));
    (100..200).for_each(|n| logs.push_line(&function_id(), InstanceId(2), n.to_string()));
    logs.remove_function(&function_id());
    let expected: Vec<_> = (0..200).map(|n| n.to_string()).collect();
    assert_eq!(within(collect_texts(reader)).await, expected);
}

#[tokio::test]
async fn a_query_without_follow_ends() {
    let logs = LogStore::new(LogBound::default());
    assert_eq!(
        within(collect_texts(logs.read_lines(query_all(false)))).await,
        [""; 0]
    );
    assert!(
        logs.lock_functions().is_empty(),
        "a query for an unknown function stores nothing"
    );
    logs.push_line(&function_id(), InstanceId(1), "one".into());
    assert_eq!(
        within(collect_texts(logs.read_lines(query_all(false)))).await,
        ["one"]
    );
}

#[tokio::test]
async fn a_slow_reader_loses_lines_and_sees_how_many() {
    let logs = LogStore::new(LogBound::default());
    let mut reader = logs.read_lines(query_all(true));
    let many = MAX_FOLLOWER_LINES as u64 + 500;
    (0..many).for_each(|n| logs.push_line(&function_id(), InstanceId(1), n.to_string()));
    for n in 0..MAX_FOLLOWER_LINES {
        assert_eq!(within(reader.recv()).await.unwrap().text, n.to_string());
    }
    logs.push_line(&function_id(), InstanceId(1), "last".into());
    let notice = within(reader.recv()).await.unwrap().text;
    assert!(notice.contains("500 lines"), "{notice}");
    assert_eq!(within(reader.recv()).await.unwrap().text, "last");
}

#[tokio::test]
async fn a_closed_reader_is_removed() {
    let logs = LogStore::new(LogBound::default());
    drop(logs.read_lines(query_all(true)));
    nearpath_testkit::eventually("the follower is removed", async || {
        logs.push_line(&function_id(), InstanceId(1), "x".into());
        logs.lock_functions()[&function_id()].followers.is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_output_is_read_to_its_end() {
    let logs = LogStore::new(LogBound::default());
    let (read, mut write) = std::io::pipe().unwrap();
    let collecting = tokio::spawn(logs.clone().collect_output(
        function_id(),
        InstanceId(7),
        read.into(),
    ));
    write.write_all(b"one\ntwo\n\npartial").unwrap();
    drop(write);
    within(collecting).await.unwrap();
    assert_eq!(
        within(collect_texts(logs.read_lines(query_all(false)))).await,
        ["one", "two", "", "partial"]
    );
    assert_eq!(
        logs.last_line(&function_id(), InstanceId(7)).as_deref(),
        Some("partial")
    );
    assert_eq!(logs.last_line(&function_id(), InstanceId(8)), None);
}
