//! Instances that are frozen and thawed: what they held goes on, and what was lost meanwhile costs them no more than a plain connection would.

use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use nearpath_testkit::{Freezer, eventually, need_root, skip};

use crate::database::Database;
use crate::egress::{run, runner};
use crate::house::House;
use crate::outside::{MACHINE, on_a_machine};

/// A server that says `answer` to each line that `asks`, and can close all that it has at once.
struct Fickle {
    port: u16,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Fickle {
    fn start(asks: fn(&str) -> bool, answer: &'static str) -> Self {
        let listener = TcpListener::bind((MACHINE, 0)).unwrap();
        let (port, open) = (listener.local_addr().unwrap().port(), Arc::<Mutex<Vec<TcpStream>>>::default());
        let all = Arc::clone(&open);
        thread::spawn(move || {
            for mut client in listener.incoming().map_while(Result::ok) {
                all.lock().unwrap().push(client.try_clone().unwrap());
                thread::spawn(move || {
                    let lines = BufReader::new(client.try_clone().unwrap()).lines().map_while(Result::ok);
                    for _ in lines.filter(|line| asks(line)) {
                        let _ = client.write_all(answer.as_bytes()); // it may have gone
                    }
                });
            }
        });
        Self { port, open }
    }

    /// As a server does that is restarted, or that has no patience with who says nothing.
    fn closes_all(&self) -> usize {
        let all = std::mem::take(&mut *self.open.lock().unwrap());
        all.iter().for_each(|client| drop(client.shutdown(Shutdown::Both))); // it may have gone
        all.len()
    }
}

/// Freezes all instances of a function; `None`: there is no freezer.
async fn frozen(house: &House, function: &str) -> Option<Freezer> {
    let processes: Vec<_> = house.processes(function).await.into_iter().map(i32::cast_unsigned).collect();
    let freezer = Freezer::around(&processes)?;
    freezer.freeze().await;
    Some(freezer)
}

macro_rules! frozen {
    ($house:expr) => {
        match frozen(&$house, "goes").await {
            Some(freezer) => freezer,
            None => skip!("no freezer of control groups here"),
        }
    };
}

/// What a server said last before it was frozen is there, and the end after it; what it opens next is served by a live connection, whatever lay ready.
#[tokio::test]
async fn a_connection_of_its_own_goes_on_and_a_new_one_is_alive() {
    need_root!();
    on_a_machine();
    let server = Fickle::start(|_| true, "heard\n");
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &[]).await;
    let egress = format!("{MACHINE}:{} protocol=tcp warm=4", server.port);
    house.deploy_ready(&runner(folder.path(), "goes", &egress)).await;
    let open = format!(
        "import builtins\nkept = builtins.kept = socket.create_connection(('{MACHINE}', {}), 20)\n",
        server.port
    );
    let talk = "kept.sendall(b'hello\\n')\nsaid = kept.recv(99).decode().strip()";
    let again = format!("import builtins\nkept = builtins.kept\n{talk}");
    for _ in 0..2 {
        for _ in 0..4 {
            assert_eq!(run(&house, "goes", &format!("{open}{talk}")).await, "heard", "{}", house.log()); // so that more lie ready
        }
        let freezer = frozen!(house);
        freezer.thaw();
        assert_eq!(run(&house, "goes", &again).await, "heard");
        freezer.freeze().await;
        assert!(server.closes_all() > 0);
        freezer.thaw();
        assert_eq!(
            run(&house, "goes", "import builtins\nsaid = builtins.kept.recv(99)").await,
            "b''",
            "an end in good order"
        );
        for _ in 0..8 {
            assert_eq!(run(&house, "goes", &format!("{open}{talk}")).await, "heard", "{}", house.log());
        }
    }
}

#[tokio::test]
async fn over_http_a_connection_that_was_kept_serves_though_its_server_closed() {
    need_root!();
    on_a_machine();
    let server = Fickle::start(str::is_empty, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nheard");
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &[]).await;
    house.deploy_ready(&runner(folder.path(), "goes", &format!("{MACHINE}:{} protocol=http", server.port))).await;
    let open = format!(
        "import builtins, http.client\nkept = builtins.kept = http.client.HTTPConnection('{MACHINE}', {}, timeout=20)\n",
        server.port
    );
    let ask = "kept.request('GET', '/')\nsaid = kept.getresponse().read().decode()";
    let again = format!("import builtins\nkept = builtins.kept\n{ask}");
    assert_eq!(run(&house, "goes", &format!("{open}{ask}")).await, "heard", "{}", house.log());
    for closes in [false, true, true] {
        let freezer = frozen!(house);
        assert!(!closes || server.closes_all() > 0);
        drop(freezer);
        assert_eq!(run(&house, "goes", &again).await, "heard", "{}", house.log());
    }
}

#[tokio::test]
async fn a_session_at_the_database_goes_on_though_the_server_ended_it() {
    need_root!();
    on_a_machine();
    let port = TcpListener::bind((MACHINE, 0)).unwrap().local_addr().unwrap().port();
    let Some(mut database) = Database::make("one", MACHINE, port).await else { skip!("needs PostgreSQL") };
    database.start().await;
    let folder = tempfile::tempdir().unwrap();
    let house = House::start_in(folder.path(), &[]).await;
    house
        .deploy_ready(&crate::failover::client(
            folder.path(),
            &format!("{MACHINE}:{port} protocol=postgres user=postgres max=2"),
        ))
        .await;
    let open = format!("import builtins, pg\nkept = builtins.kept = pg.Session('{MACHINE}', {port})\n");
    let ask = "said = kept.ask('SELECT name()')";
    let again = format!("import builtins\nkept = builtins.kept\n{ask}");
    assert_eq!(run(&house, "goes", &format!("{open}{ask}")).await, "['one']", "{}", house.log());
    for ends in [false, true, true] {
        let freezer = frozen!(house);
        if ends {
            database.end_sessions();
            eventually("they have ended", async || database.sessions() == 0).await;
        }
        drop(freezer);
        assert_eq!(run(&house, "goes", &again).await, "['one']", "{}", house.log());
        assert_eq!(run(&house, "goes", &format!("{open}{ask}")).await, "['one']", "{}", house.log());
        assert!(database.sessions() <= 2);
    }
}
