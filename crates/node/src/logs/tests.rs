use std::io::Write;

use nearpath_testkit::within;

use super::*;

fn function() -> FunctionId {
    "echo".parse().unwrap()
}

fn query(follow: bool) -> LogQuery {
    LogQuery { function: function(), instance: None, tail: None, since: None, follow }
}

async fn texts(mut from: mpsc::Receiver<LogLine>) -> Vec<String> {
    let mut all = Vec::new();
    while let Some(line) = from.recv().await {
        all.push(line.text);
    }
    all
}

#[tokio::test]
async fn a_follower_misses_and_doubles_nothing() {
    let logs = Logs::new(Bound::default());
    (0..100).for_each(|n| logs.push(&function(), InstanceId(1), n.to_string()));
    let reader = logs.read(query(true));
    (100..200).for_each(|n| logs.push(&function(), InstanceId(2), n.to_string()));
    logs.forget(&function());
    let expected: Vec<_> = (0..200).map(|n| n.to_string()).collect();
    assert_eq!(within(texts(reader)).await, expected);
}

#[tokio::test]
async fn without_follow_it_ends() {
    let logs = Logs::new(Bound::default());
    assert_eq!(within(texts(logs.read(query(false)))).await, [""; 0]);
    assert!(logs.lock().is_empty(), "asking for an unknown function leaves nothing behind");
    logs.push(&function(), InstanceId(1), "one".into());
    assert_eq!(within(texts(logs.read(query(false)))).await, ["one"]);
}

#[tokio::test]
async fn a_slow_reader_blocks_nobody_and_is_told_its_loss() {
    let logs = Logs::new(Bound::default());
    let mut reader = logs.read(query(true));
    let many = BACKLOG as u64 + 500;
    (0..many).for_each(|n| logs.push(&function(), InstanceId(1), n.to_string()));
    for n in 0..BACKLOG {
        assert_eq!(within(reader.recv()).await.unwrap().text, n.to_string());
    }
    logs.push(&function(), InstanceId(1), "last".into());
    let told = within(reader.recv()).await.unwrap().text;
    assert!(told.contains("500 lines"), "{told}");
    assert_eq!(within(reader.recv()).await.unwrap().text, "last");
}

#[tokio::test]
async fn a_reader_that_left_is_forgotten() {
    let logs = Logs::new(Bound::default());
    drop(logs.read(query(true)));
    nearpath_testkit::eventually("the follower is gone", async || {
        logs.push(&function(), InstanceId(1), "x".into());
        logs.lock()[&function()].followers.is_empty()
    })
    .await;
}

#[tokio::test]
async fn an_output_is_collected_to_its_end() {
    let logs = Logs::new(Bound::default());
    let (read, mut write) = std::io::pipe().unwrap();
    let collecting = tokio::spawn(logs.clone().collect(function(), InstanceId(7), read.into()));
    write.write_all(b"one\ntwo\n\npartial").unwrap();
    drop(write);
    within(collecting).await.unwrap();
    assert_eq!(within(texts(logs.read(query(false)))).await, ["one", "two", "", "partial"]);
    assert_eq!(logs.last_line(&function(), InstanceId(7)).as_deref(), Some("partial"));
    assert_eq!(logs.last_line(&function(), InstanceId(8)), None);
}
