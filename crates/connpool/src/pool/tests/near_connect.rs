//! Connections to near destinations, opened on demand.

use super::*;

/// Asks for a connection, as often as a busy machine needs.
async fn connect_near(pool: &Rc<ConnectionPool>, to: &EgressDestination) -> ConnectionLease {
    let function = "f.ns".parse().unwrap();
    let found = RefCell::new(None);
    eventually("a near connection", async || {
        *found.borrow_mut() = pool.connect_near(&function, to).await;
        found.borrow().is_some()
    })
    .await;
    found.take().unwrap()
}

#[test]
fn a_near_destination_is_connected_to_on_demand() {
    run_local(async {
        let (_server, port) = KeepingServer::start().await;
        let pool = ConnectionPool::start();
        let to = destination_at(port, "protocol=tcp warm=1 max=3");
        pool.retain_destination(&to);
        let counters = pool.counters_for(&to);
        eventually("a connect is measured", async || {
            counters.connect_time.get().is_some()
        })
        .await;
        counters.connect_time.set(Some(Duration::from_micros(100)));
        let mut leases = Vec::new();
        for _ in 0..3 {
            leases.push(connect_near(&pool, &to).await);
            // A slow connect of a busy machine must not end the test.
            counters.connect_time.set(Some(Duration::from_micros(100)));
        }
        let function = "f.ns".parse().unwrap();
        assert!(
            pool.connect_near(&function, &to).await.is_none(),
            "the limit holds"
        );
        assert!(
            !leases[2].stream.nodelay().unwrap(),
            "options of the kernel"
        );
    });
}

#[test]
fn a_far_destination_is_not_waited_for() {
    run_local(async {
        let (_server, port) = KeepingServer::start().await;
        let pool = ConnectionPool::start();
        let to = destination_at(port, "protocol=tcp warm=0");
        pool.retain_destination(&to);
        let function = "f.ns".parse().unwrap();
        assert!(pool.connect_near(&function, &to).await.is_none(), "unknown");
        let connect_time = &pool.counters_for(&to).connect_time;
        connect_time.set(Some(Duration::from_millis(20)));
        assert!(pool.connect_near(&function, &to).await.is_none());
    });
}
